//! Bounds, and errors for what is beyond them.

use super::support::{Client, PATIENCE, Server, command};

/// A request that breaks the protocol ends its connection with an error, and no other.
#[test]
fn bad_requests_are_told_and_harm_no_other_client() {
    let directory = tempfile::tempdir().expect("a directory");
    let server =
        Server::start(directory.path(), &["--value-max", "1MiB", "--request-memory", "4MiB"]);
    let mut other = server.client();
    let cases: [(&[u8], &str); 5] = [
        (b"*1\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'"),
        (
            b"*100000\r\n",
            "-ERR Protocol error: invalid multibulk length: a request has 100000 arguments, the limit is 65536",
        ),
        (
            b"*1\r\n$2000000\r\n",
            "-ERR Protocol error: invalid bulk length: a request needs 2000000 bytes, the limit is 1048576",
        ),
        (b"*x\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"get \"\r\n", "-ERR Protocol error: unbalanced quotes in request"),
    ];
    for (bytes, error) in cases {
        let mut client = server.client();
        client.send(b"PING\r\n").expect("sent");
        client.send(bytes).expect("sent");
        assert_eq!(
            client.reply().map(|reply| super::support::text(&reply)).as_deref(),
            Some("PONG")
        );
        assert_eq!(
            client.reply().map(|reply| super::support::text(&reply)).as_deref(),
            Some(error)
        );
        assert_eq!(client.reply(), None, "{error}");
        assert_eq!(other.text("PING"), "PONG");
    }
}

/// Memory of requests that are not complete is shared by all, and a client that finds none is told.
#[test]
fn requests_in_flight_have_a_bound_together() {
    let directory = tempfile::tempdir().expect("a directory");
    let server =
        Server::start(directory.path(), &["--value-max", "1MiB", "--request-memory", "2MiB"]);
    let mut watcher = server.client();
    // Nearly a whole value each, and no end.
    let mut bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n".to_vec();
    bytes.resize(bytes.len() + 999_000, b'x');
    let mut held: Vec<Client> = (0..6).map(|_| server.client()).collect();
    let mut refused = 0;
    for client in &mut held {
        let sent = client.send(&bytes);
        // Its effect is seen before the next client sends.
        assert!(watcher.info("request_memory_used_bytes") <= f64::from(2 << 20));
        refused += u32::from(sent.is_err());
    }
    // Three of a million bytes do not fit: the others are told before any is complete.
    let begin = std::time::Instant::now();
    while watcher.info("errors_total") < 1.0 {
        assert!(begin.elapsed() < PATIENCE, "no request was refused");
    }
    // The rest of the value: those that were let in get their reply, the others an error.
    let mut replies = Vec::new();
    for mut client in held {
        let _ = client.send(&[b'x'; 1000]);
        let _ = client.send(b"\r\n");
        replies.push(client.reply().map(|reply| super::support::text(&reply)));
    }
    let ok = replies.iter().flatten().filter(|reply| *reply == "OK").count();
    assert!((1..=2).contains(&ok), "{replies:?}, {refused} refused while sending");
    assert_eq!(watcher.text("PING"), "PONG");
    assert_eq!(watcher.info("request_memory_used_bytes"), 0.0, "all is given back");
}

#[test]
fn a_reply_beyond_the_memory_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &["--request-memory", "2MiB"]);
    let mut client = server.client();
    let value = "v".repeat(500_000);
    assert_eq!(client.text(&format!("SET k {value}")), "OK");
    assert_eq!(client.text("MGET k k k").len(), "[v v v]".len() + 3 * 499_999);
    let reply = client.text("MGET k k k k k k k k");
    assert!(reply.starts_with("-NOMEMORY "), "{reply:.100}");
    assert_eq!(client.text("STRLEN k"), "500000", "the connection goes on");
}

#[test]
fn connections_are_bounded() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path(), &["--connections", "2"]);
    let (mut first, mut second) = (server.client(), server.client());
    assert_eq!([first.text("PING"), second.text("PING")], ["PONG", "PONG"]);
    let mut third = server.client();
    let refusal = third.reply().map(|reply| super::support::text(&reply));
    assert_eq!(refusal.as_deref(), Some("-ERR max number of clients reached (--connections)"));
    assert_eq!(first.text("ECHO a"), "a");
}

/// Without the password nothing is served, and requests are short.
#[test]
fn the_password_comes_first() {
    let directory = tempfile::tempdir().expect("a directory");
    let password = directory.path().join("password");
    std::fs::write(&password, "secret\n").expect("a file");
    let data = directory.path().join("data");
    let server = Server::start(&data, &["--password-file", password.to_str().expect("a path")]);
    let mut client = server.client();
    for line in ["GET a", "SET a 1", "PING", "INFO", "CONFIG GET *", "SCAN 0", "COMMAND"] {
        assert_eq!(client.text(line), "-NOAUTH Authentication required.", "{line}");
    }
    assert!(client.text("HELLO 3").starts_with("-NOAUTH "));
    for line in ["AUTH wrong", "AUTH other secret", "HELLO 2 AUTH default wrong"] {
        assert!(client.text(line).starts_with("-WRONGPASS "), "{line}");
    }
    client.send(b"AUTH secret\r\nSET a 1\r\n").expect("sent");
    let replies = [(); 2].map(|()| client.reply().map(|reply| super::support::text(&reply)));
    assert_eq!(replies.map(Option::unwrap_or_default), ["OK", "OK"]);

    let mut client = server.client();
    client.send(b"*2\r\n$4\r\nAUTH\r\n$100000\r\n").expect("sent");
    let reply = client.reply().map(|reply| super::support::text(&reply)).unwrap_or_default();
    assert_eq!(
        reply,
        "-ERR Protocol error: invalid bulk length: a request needs 100000 bytes, the limit is 1024"
    );
    assert!(server.client().text("HELLO 2 AUTH default secret").starts_with("[server redis"));
}

/// A directory that another server has, or that cannot be, is refused with what to do.
#[test]
fn a_start_that_cannot_be_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let _server = Server::start(directory.path(), &[]);
    let file = directory.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let cases = [
        (directory.path(), vec![], 1, "if another server has it"),
        (file.as_path(), vec![], 1, "cannot be opened"),
        (
            directory.path(),
            vec!["--level0-slowdown", "99"],
            2,
            "--level0-slowdown must be below --level0-stop",
        ),
        (
            directory.path(),
            vec!["--password-file", "/nonexistent"],
            2,
            "name a file that can be read",
        ),
    ];
    for (data, arguments, code, message) in cases {
        let output = command(data, &arguments).output().expect("it runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}

/// A wrong password is told in the log, once for many tries from one address.
#[test]
fn a_wrong_password_is_told_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let password = directory.path().join("password");
    std::fs::write(&password, "right\n").expect("written");
    let password = password.display().to_string();
    let server = Server::start(&directory.path().join("data"), &["--password-file", &password]);
    for _ in 0..2 {
        assert!(server.client().text("AUTH wrong").starts_with("-WRONGPASS"));
    }
    assert_eq!(server.client().text("AUTH right"), "OK");
    let log = server.stop_and_read();
    let told: Vec<&String> = log.iter().filter(|line| line.contains("was refused")).collect();
    assert!(told.len() == 1 && told[0].contains("its password is wrong"), "{log:#?}");
}
