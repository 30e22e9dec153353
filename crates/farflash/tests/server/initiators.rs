//! iSCSI initiators at a live server: the printed commands, CHAP, and initiators that are named.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::foreign::places;
use crate::support::initiator::{BLOCK, Chap, Initiator, Names};
use crate::support::{Files, Server};

const NAME: &str = "iqn.1993-08.org.debian:01:ab";

/// Runs commands in a shell in which `iscsiadm` does nothing but print its words, one in brackets after another. Returns the
/// lines.
fn run_printed(commands: &str, variables: &[(&str, &Path)]) -> Vec<String> {
    let script = format!("iscsiadm() {{ printf '[%s]' \"$@\"; echo; }}\n{commands}\n");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).envs(variables.iter().copied()).stderr(Stdio::inherit());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{commands}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The value of each key that iscsiadm was told of a session.
fn told(lines: &[String], record: &str, key: &str) -> String {
    let set = format!("[-n][{record}.auth.{key}][-v][");
    let found = lines.iter().find_map(|line| Some(line.split_once(&set)?.1));
    found.unwrap_or_else(|| panic!("{key}: {lines:?}")).trim_end_matches(']').to_owned()
}

/// Opens the volume, and lists the targets, as the lines have it.
fn connects(server: &Server, lines: &[String]) {
    let portal = places(server, "iSCSI portal open")[0];
    let login = lines.iter().find(|line| line.ends_with("[--login]")).unwrap();
    let target = login.split_once("[-T][").unwrap().1.split_once(']').unwrap().0;
    assert!(login.contains(&format!("[-p][{portal}]")), "{login}");
    for (record, target) in [("node.session", Some(target)), ("discovery.sendtargets", None)] {
        let [user, secret, target_user, target_secret] =
            ["username", "password", "username_in", "password_in"]
                .map(|key| told(lines, record, key));
        assert_eq!(told(lines, record, "authmethod"), "CHAP");
        assert_eq!(target_user, login.split_once("[-T][").unwrap().1.split_once(']').unwrap().0);
        let names = Names { initiator: NAME, target };
        let chap = |secret| Some(Chap { user: &user, secret, target_secret: &target_secret });
        let refused = Initiator::log_in(portal, names, chap("0123456789abcdef"));
        assert_eq!(refused.err(), Some([2, 1]), "authentication failure");
        let mut initiator = Initiator::log_in(portal, names, chap(&secret)).unwrap();
        match target {
            None => {
                let found = initiator.targets();
                assert_eq!(found, [(target_user, format!("{portal},1"))]);
            }
            Some(_) => {
                initiator.become_ready();
                initiator.write(3, &[9; BLOCK]);
                assert_eq!(initiator.read(3, 1), [9; BLOCK]);
            }
        }
    }
}

fn commands_of(document: &Value) -> String {
    document["iscsi_connect"].as_str().unwrap().to_owned()
}

/// An initiator is logged in by the lines that `volume create` and `volume show` print, as they are.
///
/// Method: a shell runs the commands with an iscsiadm that prints its words, and an initiator takes the secrets from these. The
/// tokens are shown, in files, and in files that `show` cannot know.
#[test]
fn printed_commands_log_an_initiator_in() {
    let server = Server::start_with("mem:256MiB", &["--iscsi", "127.0.0.1:0"]);
    let made = server.volume_json(&["create", "shown", "--size", "16MiB"]);
    let lines = run_printed(&commands_of(&made), &[]);
    assert_eq!(told(&lines, "node.session", "password"), made["chap_secret"].as_str().unwrap());
    connects(&server, &lines);
    // The tokens of what was created, for that which is shown.
    let files = Files::new();
    for name in ["token", "controller_token"] {
        std::fs::write(files.path(name), made[name].as_str().unwrap()).unwrap();
    }
    let shown = server.volume_json(&["show", "shown"]);
    let secrets = [&made["token"], &made["chap_secret"], &made["chap_target_secret"]];
    let secrets = secrets.map(|secret| secret.as_str().unwrap());
    assert!(secrets.iter().all(|secret| !shown.to_string().contains(secret)), "{shown}");
    let (token, controller) = (files.path("token"), files.path("controller_token"));
    let variables = [("TOKEN_FILE", &*token), ("CONTROLLER_TOKEN_FILE", &*controller)];
    assert_eq!(run_printed(&commands_of(&shown), &variables), lines);
    let text = server.volume(&["show", "shown"]).stdout;
    assert!(commands_of(&shown).lines().all(|line| text.contains(line)), "{text}");

    let token = files.path("it's kept.token");
    let arguments = ["create", "kept", "--size", "16MiB", "--token-file", token.to_str().unwrap()];
    let made = server.volume_json(&arguments);
    assert!(
        made.get("chap_secret").is_none() && made.get("chap_target_secret").is_none(),
        "{made}"
    );
    let lines = run_printed(&commands_of(&made), &[]);
    for side in ["password", "password_in"] {
        assert!(!commands_of(&made).contains(&told(&lines, "node.session", side)), "{made}");
    }
    connects(&server, &lines);

    let created = server.volume(&["create", "told", "--size", "16MiB"]).stdout;
    let (_, commands) = created.split_once("or by iSCSI with:\n").unwrap();
    let commands: Vec<_> = commands.lines().take_while(|line| line.starts_with("  ")).collect();
    let lines = run_printed(&commands.join("\n"), &[]);
    connects(&server, &lines);
    assert!(
        created
            .contains(&format!("CHAP secret       {}", told(&lines, "node.session", "password")))
    );
}

/// New tokens are new secrets, which are told with them; the commands of a server without authentication have none.
#[test]
fn new_secrets_are_told_with_new_tokens() {
    let server = Server::start_with("mem:256MiB", &["--iscsi", "127.0.0.1:0"]);
    let portal = places(&server, "iSCSI portal open")[0];
    let made = server.volume_json(&["create", "v", "--size", "16MiB"]);
    let id = made["id"].as_str().unwrap().to_owned();
    let target = format!("iqn.2026-01.io.farflash:{id}");
    let names = Names { initiator: NAME, target: Some(&target) };
    let log_in = |tokens: &Value| {
        let secret = tokens["chap_secret"].as_str().unwrap();
        let target_secret = tokens["chap_target_secret"].as_str().unwrap();
        Initiator::log_in(portal, names, Some(Chap { user: &id, secret, target_secret })).err()
    };
    let changed = server.volume_json(&["change-auth", "v"]);
    assert_eq!((log_in(&made), log_in(&changed)), (Some([2, 1]), None));

    let open = Server::start_with("mem:256MiB", &["--auth", "off", "--iscsi", "127.0.0.1:0"]);
    let made = open.volume_json(&["create", "v", "--size", "16MiB"]);
    assert!(made.get("chap_secret").is_none(), "{made}");
    assert_eq!(run_printed(&commands_of(&made), &[]).len(), 2, "{made}");
    // No initiator can open what has metadata, and none finds it.
    let arguments = ["create", "with-metadata", "--size", "16MiB", "--metadata", "8"];
    assert!(open.volume_json(&arguments).get("iscsi_connect").is_none());
    let portal = places(&open, "iSCSI portal open")[0];
    let names = Names { initiator: NAME, target: None };
    let found = Initiator::log_in(portal, names, None).unwrap().targets();
    assert_eq!(found.len(), 1, "{found:?}");
}

/// A volume that is open to named hosts admits an initiator by its name, in whatever case it is written, and no other.
#[test]
fn an_initiator_is_admitted_by_its_name() {
    let server = Server::start_with("mem:256MiB", &["--auth", "off", "--iscsi", "127.0.0.1:0"]);
    let portal = places(&server, "iSCSI portal open")[0];
    let nvme = "nqn.2014-08.org.nvmexpress:uuid:550e8400-e29b-41d4-a716-446655440000";
    let arguments = ["create", "v", "--size", "16MiB", "--host", nvme, "--host"];
    let made = server.volume_json(&[&arguments[..], &["IQN.1993-08.org.Debian:01:AB"]].concat());
    assert_eq!(made["restrictions"]["hosts"], serde_json::json!([nvme, NAME]));
    let target = format!("iqn.2026-01.io.farflash:{}", made["id"].as_str().unwrap());
    let log_in = |initiator: &str, target: Option<&str>| {
        Initiator::log_in(portal, Names { initiator, target }, None)
    };
    let outcomes = |admitted: bool, initiator: &str| {
        let found = log_in(initiator, None).unwrap().targets().len();
        let opened = log_in(initiator, Some(&target)).err();
        // Target not found: for those that may not open it, it does not exist.
        let expected = if admitted { (1, None) } else { (0, Some([2, 3])) };
        assert_eq!((found, opened), expected, "{initiator}");
    };
    for initiator in [NAME, "iqn.1993-08.org.debian:01:Ab", "IQN.1993-08.ORG.DEBIAN:01:AB"] {
        outcomes(true, initiator);
    }
    for initiator in
        ["iqn.1993-08.org.debian:01:abc", "iqn.1993-08.org.debian:01:a", "eui.02004567A425678D"]
    {
        outcomes(false, initiator);
    }
    // One that is in is cut off when it is named no more.
    let mut cut = log_in(NAME, Some(&target)).unwrap();
    cut.become_ready();
    let eui = "eui.02004567A425678D";
    server.volume_json(&["restrict", "v", "--host", eui]);
    assert!(cut.hear().is_err(), "it is cut off");
    outcomes(true, "EUI.02004567a425678d");
    outcomes(false, NAME);
    let odd = server.volume(&["restrict", "v", "--host", "eui.0200", "--host", "naa.1"]);
    assert_eq!(odd.code, Some(0), "{odd:?}");
    assert_eq!(odd.stderr.matches("is not of the usual form").count(), 2, "{odd:?}");
    let none = server.volume(&["restrict", "v", "--host", "debian:01:ab"]);
    assert!(none.code == Some(1) && none.stderr.contains("iqn."), "{none:?}");
    server.volume_json(&["restrict", "v", "--any-host"]);
    outcomes(true, NAME);

    let other = Server::start("mem:256MiB");
    let made = other.volume(&["create", "v", "--size", "16MiB", "--host", NAME]);
    assert!(made.code == Some(0) && made.stderr.contains("is not served by iSCSI"), "{made:?}");
}
