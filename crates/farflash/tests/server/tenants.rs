//! Access to volumes of a real server: tokens, restrictions, and the answers to strangers.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::support::host::{connect, filled, on_core};
use crate::support::networks::{Networks, ip, within};
use crate::support::users::{self, User};
use crate::support::{Files, Outcome, Server, farflash, refused, run, until};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use units::Lba;

const BENCH: [&str; 8] = ["--rw", "randwrite", "--bs", "4KiB", "--qd", "8", "--bytes", "1MiB"];

fn target(volume: &serde_json::Value) -> String {
    let field = |name: &str| volume[name].as_str().unwrap().to_owned();
    format!("tcp://{}/{}", field("address"), field("nqn"))
}

/// Uses a volume as a host whose environment holds `token`.
fn use_with(token: &str, volume: &serde_json::Value) -> Outcome {
    let target = target(volume);
    let arguments = [&["bench", "--target", &target, "--overwrite"], &BENCH[..]].concat();
    let mut command = farflash(&arguments);
    command.env_remove("FARFLASH_CONTROLLER_TOKEN").env("FARFLASH_TOKEN", token);
    command.output().unwrap().into()
}

#[track_caller]
fn opens(token: &str, volume: &serde_json::Value) {
    let outcome = use_with(token, volume);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[track_caller]
fn does_not_open(token: &str, volume: &serde_json::Value, why: &str) {
    let outcome = use_with(token, volume);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains(why), "{outcome:?}");
}

fn text<'a>(value: &'a serde_json::Value, field: &str) -> &'a str {
    value[field].as_str().unwrap()
}

#[test]
fn a_volume_is_opened_with_its_token_and_no_other() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let one = server.volume_json(&["create", "one", "--size", "64MiB"]);
    let two = server.volume_json(&["create", "two", "--size", "64MiB"]);
    opens(text(&one, "token"), &one);
    does_not_open(text(&two, "token"), &one, "no volume");
    does_not_open("", &one, "wants to see a token");
    let shown = server.volume_json(&["show", "one"]);
    assert!(shown.get("token").is_none(), "shown once: {shown}");
    let connect = text(&shown, "connect");
    let (command, comment) = connect.split_once("  # ").unwrap();
    let ends = format!(" -n {} --config /etc/nvme/config.json", text(&shown, "nqn"));
    assert!(command.ends_with(&ends), "no secret among the arguments: {connect}");
    assert!(comment.contains("\"dhchap_key\""), "{connect}");
    // The server has to prove itself, too.
    let mutual = |token: &str, controller: &str| -> Outcome {
        let target = target(&one);
        let arguments = [&["bench", "--target", &target, "--overwrite"], &BENCH[..]].concat();
        let mut command = farflash(&arguments);
        command.env("FARFLASH_TOKEN", token).env("FARFLASH_CONTROLLER_TOKEN", controller);
        command.output().unwrap().into()
    };
    let outcome = mutual(text(&one, "token"), text(&one, "controller_token"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let outcome = mutual(text(&one, "token"), text(&two, "controller_token"));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn tokens_go_to_files_that_only_their_owner_reads() {
    let files = Files::new();
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let path = files.path("token");
    let path = path.to_str().unwrap();
    let outcome = server.volume(&["create", "v", "--size", "64MiB", "--token-file", path]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let token = std::fs::read_to_string(path).unwrap();
    let controller = format!("{path}.controller");
    // The server's own secret is none to show either.
    let secrets = [path, &controller].map(|file| std::fs::read_to_string(file).unwrap());
    assert_ne!(secrets[0], secrets[1]);
    for (secret, file) in secrets.iter().zip([path, &controller]) {
        assert!(!outcome.stdout.contains(secret.trim()), "{outcome:?}");
        assert!(outcome.stdout.contains(&format!("in {file}\n")), "{outcome:?}");
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert_eq!(secrets[0], token);
    let volume = server.volume_json(&["show", "v"]);
    let target = target(&volume);
    let bench = |file: &str| {
        let arguments = ["bench", "--target", &target, "--overwrite", "--token-file", file];
        run(&[&arguments[..], &BENCH].concat())
    };
    assert_eq!(bench(path).code, Some(0));
    let proves = ["--token-file", path, "--controller-token-file", &controller];
    let mutual = ["bench", "--target", &target, "--overwrite"];
    assert_eq!(run(&[&mutual[..], &proves, &BENCH].concat()).code, Some(0));
    // What is there is not written over, and nothing is made that would be lost.
    let again = ["volume", "create", "w", "--size", "64MiB", "--token-file", path];
    let api = ["--api", server.api.as_str()];
    refused(&[&again[..], &api].concat(), 2, "exists", "--token-file");
    assert!(server.volume(&["show", "w"]).stderr.contains("there is no volume"));
    let nowhere = files.path("no/such/place");
    let lost = ["volume", "change-auth", "v", "--token-file", nowhere.to_str().unwrap()];
    refused(&[&lost[..], &api].concat(), 1, "cannot be made", "--token-file");
    assert_eq!(bench(path).code, Some(0), "the token is the same");
    let others_may_read = || bench(path).stderr.contains("every user of this machine can read");
    assert!(!others_may_read());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(others_may_read());
    let other = files.path("other");
    let shown = server.volume_json(&["change-auth", "v", "--token-file", other.to_str().unwrap()]);
    assert!(shown.get("token").is_none() && shown.get("controller_token").is_none(), "{shown}");
    assert_eq!(bench(other.to_str().unwrap()).code, Some(0));
    // Each can be shown alone.
    let lone = files.path("lone");
    let flags = ["change-auth", "v", "--controller-token-file", lone.to_str().unwrap()];
    let shown = server.volume_json(&flags);
    assert!(shown.get("token").is_some() && shown.get("controller_token").is_none(), "{shown}");
    assert!(std::fs::read_to_string(&lone).unwrap().starts_with("DHHC-1:"));
    std::fs::write(path, "DHHC-1:01:notbase64!:").unwrap();
    let outcome = bench(path);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("holds no token"), "{outcome:?}");
}

#[test]
fn tokens_are_changed_and_survive_a_kill() {
    let files = Files::new();
    let device = files.device("flash.img");
    crate::support::succeed(&["format", "--device", &format!("{device},size=1GiB")]);
    let server = Server::start_with(&device, &["--auth", "on"]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let first = text(&volume, "token").to_owned();
    let second = server.volume_json(&["change-auth", "v", "--grace", "3600"]);
    opens(&first, &volume);
    opens(text(&second, "token"), &volume);
    drop(server);
    let server = Server::start_with(&device, &["--auth", "on"]);
    let volume = server.volume_json(&["show", "v"]);
    opens(&first, &volume);
    opens(text(&second, "token"), &volume);
    let third = server.volume_json(&["change-auth", "v", "--cut"]);
    does_not_open(&first, &volume, "no volume");
    does_not_open(text(&second, "token"), &volume, "no volume");
    opens(text(&third, "token"), &volume);
    drop(server);
    // Without authentication the same volume is open to all.
    let server = Server::start_with(&device, &["--auth", "off"]);
    opens("", &server.volume_json(&["show", "v"]));
}

/// Warnings of a server that has just started.
fn warnings(server: &Server) -> Vec<&str> {
    let warns = server.starting.iter().filter(|line| line["level"] == "WARN");
    warns.map(|line| line["fields"]["message"].as_str().unwrap()).collect()
}

/// Volumes are open to all by `--auth off` and by nothing else, and the API to all that reach it by
/// `--api-open`; the log warns of either, and of an API that listens to other hosts and answers no caller
/// there.
#[test]
fn a_server_is_open_by_its_owner_s_word_and_says_so() {
    let open = "authentication is off: any host";
    let api = "the API is open";
    let alone = "the API answers no caller on other hosts";
    let warns = |server: &Server| {
        let warnings = warnings(server);
        [open, api, alone].map(|what| warnings.iter().any(|line| line.starts_with(what)))
    };
    let serve = ["serve", "--device", "mem:256MiB", "--listen", "127.0.0.1:0", "--log-json"];
    let start = |more: &[&str]| Server::from_arguments(&[&serve[..], more].concat());
    // Nothing said.
    let server = start(&["--api", "127.0.0.1:0"]);
    assert_eq!(warns(&server), [false, false, false]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    does_not_open("", &volume, "wants to see a token");
    opens(text(&volume, "token"), &volume);
    let server = start(&["--api", "127.0.0.1:0", "--auth", "off"]);
    assert_eq!(warns(&server), [true, false, false]);
    opens("", &server.volume_json(&["create", "v", "--size", "64MiB"]));
    assert_eq!(warns(&start(&["--api", "0.0.0.0:0"])), [false, false, true]);
    assert_eq!(warns(&start(&["--api", "127.0.0.1:0", "--api-open"])), [false, true, false]);
}

/// A host that gave wrong tokens too often is told that this is the reason, and how long it lasts, also with
/// the right one.
#[test]
fn who_is_put_off_is_told_so() {
    let server = Server::start_with("mem:256MiB", &["--auth", "on"]);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let other = server.volume_json(&["create", "other", "--size", "64MiB"]);
    for _ in 0..32 {
        does_not_open(text(&other, "token"), &volume, "that this token opens from here");
    }
    does_not_open(text(&volume, "token"), &volume, "has put its address off after");
}

#[test]
fn bad_restrictions_are_refused_with_their_place() {
    let server = Server::start("mem:256MiB");
    let api = ["--api", server.api.as_str()];
    let refused = |arguments: &[&str], code: i32, what: &str| {
        refused(&[&["volume"], arguments, &api].concat(), code, what, "");
    };
    let create = ["create", "v", "--size", "64MiB", "--network", "10.0.0.1/8"];
    refused(&create, 1, "--network: `10.0.0.1/8`");
    server.volume_json(&["create", "v", "--size", "64MiB"]);
    refused(&["restrict", "v"], 2, "who may open");
    refused(&["restrict", "v", "--host", "me"], 1, "--host: `me`");
    refused(&["restrict", "v", "--interface", "a/b"], 1, "--interface: `a/b`");
    let named = server.volume_json(&["restrict", "v", "--interface", "lo", "--network", "::1"]);
    assert_eq!(named["restrictions"]["networks"][0], "::1/128");
    let wider = server.volume_json(&["restrict", "v", "--any-network"]);
    assert_eq!(wider["restrictions"]["interfaces"][0], "lo", "what is not named stays");
    assert_eq!(wider["restrictions"]["networks"].as_array().map(Vec::len), Some(0));
}

/// Networks of both kinds. Method: a server listens on all addresses of both kinds by one socket, to which IPv4 addresses
/// come in the form of IPv6 ones; hosts come by either.
#[test]
fn networks_of_either_kind_let_in_their_own() {
    let more = ["--advertise", "127.0.0.1", "--auth", "off"];
    let server = Server::start_on("mem:256MiB", "[::]:0", "127.0.0.1:0", &more);
    let volume = server.volume_json(&["create", "v", "--size", "64MiB"]);
    let (nqn, port) = (text(&volume, "nqn"), server.portals[0].port());
    for (networks, by_ipv6, by_ipv4) in [
        (&["--any-network"][..], true, true),
        (&["--network", "::1"], true, false),
        (&["--network", "::/64"], true, false),
        (&["--network", "2001:db8::/32"], false, false),
        (&["--network", "127.0.0.0/8"], false, true),
        (&["--network", "::ffff:127.0.0.0/104"], false, true),
        (&["--network", "::ffff:127.0.0.1"], false, true),
        (&["--network", "0.0.0.0/0"], false, true),
        (&["--network", "2001:db8::/32", "--network", "127.0.0.1"], false, true),
        (&["--network", "10.0.0.0/8", "--network", "::/0"], true, false),
    ] {
        server.volume_json(&[&["restrict", "v"], networks].concat());
        for (ip, is_let_in) in [("[::1]", by_ipv6), ("127.0.0.1", by_ipv4)] {
            let portal = format!("{ip}:{port}");
            let target = format!("tcp://{portal}/{nqn}");
            let outcome =
                run(&[&["bench", "--target", &target, "--overwrite"], &BENCH[..]].concat());
            let code = if is_let_in { 0 } else { 1 };
            assert_eq!(outcome.code, Some(code), "{networks:?} {ip}: {outcome:?}");
            assert!(is_let_in || outcome.stderr.contains("has no volume"), "{outcome:?}");
            let found = crate::support::succeed(&["discover", &portal]);
            assert_eq!(found.contains(nqn), is_let_in, "{networks:?} {ip}: {found}");
        }
    }
}

/// Restrictions that admit no host, or not the one that was meant, are made, and a person is told what is odd about them.
#[test]
fn a_restriction_that_no_host_can_match_is_warned_of() {
    let server = Server::start("mem:256MiB");
    let upper = "nqn.2014-08.org.nvmexpress:uuid:550E8400-E29B-41D4-A716-446655440000";
    let lower = upper.to_lowercase();
    let create = ["create", "v", "--size", "64MiB"];
    let restrict = ["restrict", "v"];
    for (words, doubts) in [
        ([&create[..], &["--network", "224.0.0.0/4", "--host", upper]].concat(), 2),
        ([&restrict[..], &["--network", "::ffff:224.0.0.0/100", "--any-host"]].concat(), 1),
        ([&restrict[..], &["--any-network", "--host", upper]].concat(), 1),
        ([&restrict[..], &["--network", "10.0.0.0/8", "--host", &lower]].concat(), 0),
        ([&restrict[..], &["--nbd-network", "224.0.0.0/4"]].concat(), 1),
        ([&restrict[..], &["--nbd-network", "10.0.0.0/8"]].concat(), 0),
    ] {
        let outcome = server.volume(&words);
        assert_eq!(outcome.code, Some(0), "{words:?}: {outcome:?}");
        let warnings = outcome.stderr.lines().filter(|line| line.starts_with("warning: "));
        let warnings: Vec<_> = warnings.collect();
        assert_eq!(warnings.len(), doubts, "{words:?}: {outcome:?}");
        let is_told = |line: &&str| {
            line.contains("the network 224.0.0.0/4 admits no")
                || line.contains("upper-case letters")
        };
        assert!(warnings.iter().all(is_told), "{words:?}: {outcome:?}");
    }
}

/// Runs `farflash volume …` as the user with `token`.
fn ask(server: &Server, token: &str, arguments: &[&str]) -> Outcome {
    let arguments = [&["volume"], arguments, &["--api", &server.api, "--json"]].concat();
    farflash(&arguments).env("FARFLASH_API_TOKEN", token).output().unwrap().into()
}

#[track_caller]
fn is_refused(outcome: &Outcome, why: &str) {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains(why), "{outcome:?}");
}

/// Two tenants and an operator, by tokens that the program has made.
#[test]
fn tenants_manage_their_own_volumes_within_their_quota() {
    let files = Files::new();
    let (ops, acme, other) = (User::operator("ops"), User::tenant("acme"), User::tenant("other"));
    let quota = "volumes = 2\nprovisioned = \"100MiB\"\nshare = 150";
    let users = users::list(&files, &[ops.entry(), acme.bounded(quota), other.entry()]);
    let [ops, acme, other] = [&ops, &acme, &other].map(|user| user.token.as_str());
    let audit = files.path("audit.jsonl");
    let more = ["--api-users", &users, "--audit-log", audit.to_str().unwrap()];
    let server = Server::start_with("mem:256MiB", &more);

    let made = ask(&server, acme, &["create", "a", "--size", "64MiB"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let volume: serde_json::Value = serde_json::from_str(&made.stdout).unwrap();
    assert_eq!(text(&volume, "owner"), "acme");
    let id = text(&volume, "id");
    // To others it is not there, whatever they try.
    for arguments in [
        &["show", "a"][..],
        &["show", id],
        &["resize", "a", "--size", "1MiB"],
        &["set-slo", id, "--share", "1"],
        &["change-auth", "a"],
        &["restrict", id, "--any-host"],
        &["delete", "--lose-data", "a"],
    ] {
        is_refused(&ask(&server, other, arguments), "there is no volume");
        is_refused(&ask(&server, "", arguments), "answers to those it knows");
    }
    let listed = ask(&server, other, &["list"]);
    assert!(!listed.stdout.contains(id), "{listed:?}");
    let theirs = ["create", "b", "--size", "1MiB", "--owner", "acme"];
    is_refused(&ask(&server, other, &theirs), "--owner must be yourself");
    // Its own, and no more than its quota.
    is_refused(&ask(&server, acme, &["resize", "a", "--size", "101MiB"]), "the quota of acme");
    is_refused(&ask(&server, acme, &["create", "b", "--size", "64MiB"]), "provisioned; this makes");
    is_refused(&ask(&server, acme, &["create", "b", "--size", "1MiB"]), "of shares");
    let small = ["create", "b", "--size", "1MiB", "--share", "50"];
    assert_eq!(ask(&server, acme, &small).code, Some(0));
    let third = ["create", "c", "--size", "1MiB", "--share", "1"];
    is_refused(&ask(&server, acme, &third), "2 volumes");
    assert_eq!(ask(&server, acme, &["delete", "--lose-data", "b"]).code, Some(0));
    // It sees how much of it it has, and the operator what all have.
    let quotas = |token: &str| -> serde_json::Value {
        let mut command = farflash(&["quota", "--api", &server.api, "--json"]);
        let outcome: Outcome = command.env("FARFLASH_API_TOKEN", token).output().unwrap().into();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let own = quotas(acme)["quotas"].clone();
    assert_eq!(own.as_array().unwrap().len(), 1, "{own}");
    assert_eq!(own[0]["volumes"], serde_json::json!({ "used": 1, "limit": 2 }), "{own}");
    assert_eq!(own[0]["provisioned_bytes"]["used"], 64 << 20, "{own}");
    let all = quotas(ops)["quotas"].clone();
    assert_eq!((&all[0], text(&all[1], "tenant")), (&own[0], "other"), "{all}");
    let mut shown = farflash(&["quota", "--api", &server.api]);
    let shown: Outcome = shown.env("FARFLASH_API_TOKEN", acme).output().unwrap().into();
    assert!(shown.stdout.contains("1 of 2") && shown.stdout.contains("100 MiB"), "{shown:?}");
    // The operator sees all.
    let listed = ask(&server, ops, &["list"]);
    assert!(listed.stdout.contains(id), "{listed:?}");
    assert_eq!(ask(&server, ops, &["change-auth", "a"]).code, Some(0));
    let lines = std::fs::read_to_string(&audit).unwrap();
    assert!(lines.contains("\"caller\":\"acme\"") && lines.contains("\"caller\":\"other\""));
    assert!(!lines.contains("DHHC") && !lines.contains("ffk_"), "no secrets: {lines}");
}

#[test]
fn a_wrong_list_of_users_keeps_the_server_from_starting() {
    let files = Files::new();
    let users = files.path("users.toml");
    let serve = ["serve", "--device", "mem:64MiB", "--listen", "127.0.0.1:0", "--api"];
    let serve = [&serve[..], &["127.0.0.1:0", "--api-users", users.to_str().unwrap()]].concat();
    refused(&serve, 1, "cannot be read", "--api-users");
    std::fs::write(&users, "[[operator]]\nname = \"x\"\ntoken_sha256 = \"1\"").unwrap();
    refused(&serve, 2, "64 hexadecimal digits", "api-token");
}

/// A volume that was made, opened with its token.
fn opened(made: &serde_json::Value) -> farflash_client::Volume {
    let token = Some(text(made, "token").to_owned());
    let options = farflash_client::OpenOptions { token, ..Default::default() };
    farflash_client::open(&target(made), &options).unwrap()
}

/// A tenant's volumes together hold no more than its quota, on whichever core they are; others do not
/// notice, what is there can be overwritten, and what is given back can be used.
#[test]
fn a_tenant_holds_no_more_than_its_quota() {
    const MIB: u64 = 1 << 20;
    let files = Files::new();
    let (acme, ops) = (User::tenant("acme"), User::operator("ops"));
    let users = users::list(&files, &[acme.bounded("allocated = \"16MiB\""), ops.entry()]);
    let cores = crate::support::cores(2).unwrap_or_else(|| crate::support::cores(1).unwrap());
    let more = ["--api-users", &users, "--cores", &cores];
    let server = Server::start_with("mem:512MiB", &more);
    let open = |user: &User, name: &str, core: &str| {
        let made = ask(&server, &user.token, &["create", name, "--size", "64MiB", "--core", core]);
        let made: serde_json::Value = serde_json::from_str(&made.stdout).unwrap();
        opened(&made)
    };
    let cores: Vec<&str> = cores.split(',').collect();
    let (first, last) = (cores[0], cores[cores.len() - 1]);
    let (a, b, other) = (open(&acme, "a", first), open(&acme, "b", last), open(&ops, "o", first));
    let data = vec![7; MIB as usize];
    let is_full = |error: &farflash_client::Error| error.to_string().contains("Capacity Exceeded");
    // Both at once. At the end a core's part of what is left may be less than a write.
    let mut held = [0_u64; 2];
    let write = |held: &mut [u64; 2]| {
        let mut refused = 0;
        for (n, volume) in [&a, &b].into_iter().enumerate() {
            match volume.write_at(&data, held[n] * MIB) {
                Ok(()) => held[n] += 1,
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(held.iter().sum::<u64>() <= 16, "{held:?}");
        refused
    };
    crate::support::until("the quota is used", || {
        write(&mut held);
        held.iter().sum::<u64>() >= 15
    });
    crate::support::until("both are refused", || write(&mut held) == 2);
    a.write_at(&data, 0).unwrap();
    let shown = ask(&server, &acme.token, &["show", "a"]);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["allocated_bytes"], held[0] * MIB);
    for at in 0..32 {
        other.write_at(&data, at * MIB).unwrap();
    }
    a.deallocate(0, 2 * MIB).unwrap();
    crate::support::until("what was given back can be used", || {
        b.write_at(&data, held[1] * MIB).is_ok()
    });
}

/// The limit on the space of a tenant's volumes changes with its list, also of a tenant that had no bound
/// before, and while they hold more. Method: one block after the other is written on each core, before and
/// after SIGHUP.
#[test]
fn what_a_tenant_may_hold_changes_at_a_reload() {
    const MIB: u64 = 1 << 20;
    let files = Files::new();
    let (acme, other) = (User::tenant("acme"), User::tenant("b"));
    let list = |quota: &str| {
        users::list(&files, &[acme.bounded(quota), other.bounded("allocated = \"0\"")])
    };
    let users = list("");
    let cores = crate::support::cores(2).unwrap_or_else(|| crate::support::cores(1).unwrap());
    let more = ["--api-users", &users, "--cores", &cores];
    let server = Server::start_with("mem:512MiB", &more);
    let reload = |quota: &str| {
        list(quota);
        server.signal("HUP");
        let read = |line: &serde_json::Value| line["message"] == "SIGHUP: read again";
        assert_eq!(server.log_until(read).last().unwrap()["kept"], 0);
    };
    let volumes: Vec<_> = cores
        .split(',')
        .map(|core| {
            let name = format!("v{core}");
            let create = ["create", &name, "--size", "128MiB", "--core", core];
            let made = ask(&server, &acme.token, &create);
            let made: serde_json::Value = serde_json::from_str(&made.stdout).unwrap();
            opened(&made)
        })
        .collect();
    let data = vec![7; 64 << 10];
    let mut held = vec![0_u64; volumes.len()];
    // Whether all were refused.
    let grow = |held: &mut [u64]| {
        let mut refused = 0;
        for (volume, held) in volumes.iter().zip(held) {
            match volume.write_at(&data, *held) {
                Ok(()) => *held += data.len() as u64,
                Err(error) => {
                    assert!(error.to_string().contains("Capacity Exceeded"), "{error}");
                    refused += 1;
                }
            }
        }
        refused == volumes.len()
    };
    while held.iter().sum::<u64>() < 4 * MIB {
        assert!(!grow(&mut held), "nothing bounds it");
    }
    for quota in [8 * MIB, 16 * MIB] {
        reload(&format!("allocated = \"{quota}B\""));
        crate::support::until("the quota is used", || {
            grow(&mut held);
            let sum = held.iter().sum::<u64>();
            assert!(sum <= quota, "{held:?}");
            sum >= quota / 10 * 9
        });
    }
    reload("allocated = \"8MiB\"");
    assert!(grow(&mut held), "it holds more than it may");
    reload("");
    while held.iter().sum::<u64>() < 32 * MIB {
        assert!(!grow(&mut held), "nothing bounds it");
    }
}

/// A volume that may be opened by way of a VXLAN only, and a host that comes by the wire below it,
/// also under the address that belongs to the VXLAN.
#[test]
fn a_volume_of_one_vxlan_is_not_there_for_others() {
    assert!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let networks = Networks::new();
    let server = Server::start_within(
        &networks.server,
        "mem:256MiB",
        &["--auth", "off", "--advertise", "10.78.0.1,10.77.0.1"],
    );
    let in_server = |arguments: &[&str]| networks.volume_json(&server, arguments);
    let volume = in_server(&["create", "v", "--size", "64MiB", "--interface", "vxlan42"]);
    let nqn = text(&volume, "nqn");
    let port = server.portals[0].port();
    let from_host = |address: &str| -> Outcome {
        let target = format!("tcp://{address}:{port}/{nqn}");
        let arguments = [&["bench", "--target", &target, "--overwrite"], &BENCH[..]].concat();
        within(&networks.host, &farflash(&arguments)).output().unwrap().into()
    };
    let seen_from = |address: &str| -> String {
        let address = format!("{address}:{port}");
        let output = within(&networks.host, &farflash(&["discover", &address])).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let outcome = from_host("10.78.0.1");
    assert_eq!(outcome.code, Some(0), "by the VXLAN: {outcome:?}");
    let told = seen_from("10.78.0.1");
    assert!(told.contains(nqn) && told.contains(&format!("10.78.0.1:{port}")), "{told}");
    let outcome = from_host("10.77.0.1");
    assert!(outcome.stderr.contains("has no volume"), "by the wire: {outcome:?}");
    assert!(!seen_from("10.77.0.1").contains(nqn));
    // The server answers for all its addresses on all its interfaces, as Linux does.
    ip(&format!("-n {} route add 10.78.0.1/32 via 10.77.0.1 dev wire", networks.host));
    let outcome = from_host("10.78.0.1");
    assert!(outcome.stderr.contains("has no volume"), "by the wire, in disguise: {outcome:?}");
    in_server(&["restrict", "v", "--any-interface", "--network", "10.77.0.0/24"]);
    let outcome = from_host("10.77.0.1");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let told = seen_from("10.77.0.1");
    assert!(told.contains(&format!("10.77.0.1:{port}")), "the address in its own network: {told}");
    assert!(!told.contains("10.78.0.1"), "{told}");
    in_server(&["restrict", "v", "--network", "10.99.0.0/16"]);
    let outcome = from_host("10.77.0.1");
    assert!(outcome.stderr.contains("has no volume"), "from elsewhere: {outcome:?}");
}

/// An interface that is not there may come: it may be named, and the user that names it is warned.
#[test]
fn who_names_an_interface_that_is_not_there_is_told() {
    assert!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let networks = Networks::new();
    let more = ["--auth", "off", "--advertise", "10.77.0.1", "--host-name", "flash-1"];
    let server = Server::start_within(&networks.server, "mem:256MiB", &more);
    let ask = |words: &[&str]| -> Outcome {
        let words = [&["volume"], words, &["--api", &server.api]].concat();
        let outcome: Outcome = within(&networks.server, &farflash(&words)).output().unwrap().into();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome
    };
    let absent = || networks.volume_json(&server, &["show", "v"])["absent_interfaces"].clone();
    let made = ask(&["create", "v", "--size", "64MiB", "--interface", "late0"]);
    assert!(made.stderr.contains("warning: host flash-1 has no interface late0 now"), "{made:?}");
    let both = ask(&["restrict", "v", "--interface", "late0", "--interface", "vxlan42"]);
    assert!(both.stderr.contains("no interface late0 now, by which hosts would come to v"));
    assert_eq!(absent(), serde_json::json!(["late0"]));
    assert!(ask(&["show", "v"]).stdout.contains("absent     interfaces late0"));
    // Another name for one is none by which connections are known.
    let (server_space, altname) = (&networks.server, "property add dev vxlan42 altname");
    ip(&format!("-n {server_space} link {altname} late0"));
    assert_eq!(absent(), serde_json::json!(["late0"]));
    ip(&format!("-n {server_space} link property del dev vxlan42 altname late0"));
    ip(&format!("-n {server_space} link add late0 type vxlan id 43 dstport 4790 dev wire"));
    assert_eq!(absent(), serde_json::Value::Null);
    let there = ask(&["restrict", "v", "--interface", "late0"]);
    assert!(!there.stderr.contains("warning"), "{there:?}");
}

/// A host in a namespace that writes over one connection for as long as it has it.
struct Writer {
    written: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Writer {
    fn connected(namespace: &str, portal: SocketAddr, nqn: &str) -> Self {
        let path = format!("/run/netns/{namespace}");
        let nqn = nqn.parse().unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let count = written.clone();
        let thread = std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            // Of this thread alone.
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            on_core(|handle| async move {
                let volume = connect(&handle, portal, &nqn).await;
                while volume.write(Lba(0), filled(1)).await.is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let writer = Self { written, thread };
        writer.goes_on("it has connected");
        writer
    }

    #[track_caller]
    fn goes_on(&self, why: &str) {
        let before = self.written.load(Ordering::Relaxed);
        until(why, || self.written.load(Ordering::Relaxed) > before + 10 || self.is_cut());
        assert!(!self.is_cut(), "{why}");
    }

    fn is_cut(&self) -> bool {
        self.thread.is_finished()
    }
}

/// A volume that two interfaces lead to, of which one is taken away, and then the other.
#[test]
fn who_is_connected_by_an_interface_that_no_longer_counts_is_cut() {
    assert!(rustix::process::geteuid().is_root(), "network namespaces need root");
    let networks = Networks::new();
    let options = ["--auth", "off", "--advertise", "10.78.0.1"];
    let server = Server::start_within(&networks.server, "mem:256MiB", &options);
    let in_server = |arguments: &[&str]| networks.volume_json(&server, arguments);
    let both = ["--interface", "vxlan42", "--interface", "wire"];
    let volume = in_server(&[&["create", "v", "--size", "64MiB"], &both[..]].concat());
    let writer = |address: [u8; 4]| {
        let portal = SocketAddr::from((address, server.portals[0].port()));
        Writer::connected(&networks.host, portal, text(&volume, "nqn"))
    };
    let (by_vxlan, by_wire) = (writer([10, 78, 0, 1]), writer([10, 77, 0, 1]));
    in_server(&["restrict", "v", "--interface", "wire"]);
    until("who came by the VXLAN is cut", || by_vxlan.is_cut());
    by_wire.goes_on("who came by the wire may stay");
    in_server(&["restrict", "v", "--interface", "vxlan42"]);
    until("who came by the wire is cut", || by_wire.is_cut());
    let again = writer([10, 78, 0, 1]);
    again.goes_on("who comes by the VXLAN may again");
    in_server(&["delete", "--lose-data", "v"]);
    until("nothing is left to write to", || again.is_cut());
}

#[test]
fn the_api_is_encrypted_where_that_is_asked_for() {
    let files = Files::new();
    let (tls, ops) = (files.path("tls"), User::operator("ops"));
    let (tls, users) = (tls.to_str().unwrap(), users::list(&files, &[ops.entry()]));
    let server = Server::start_with("mem:256MiB", &["--api-tls", tls, "--api-users", &users]);
    assert!(server.api.starts_with("https://"), "{}", server.api);
    let certificate = format!("{tls}/certificate.pem");
    let ask = |more: &[&str]| -> Outcome {
        let arguments = [&["volume", "list", "--json", "--api", &server.api], more].concat();
        let mut command = farflash(&arguments);
        command.env("FARFLASH_API_TOKEN", &ops.token);
        command.output().unwrap().into()
    };
    let believed = ask(&["--api-ca", &certificate]);
    assert_eq!(believed.code, Some(0), "{believed:?}");
    let stranger = ask(&[]);
    assert_eq!(stranger.code, Some(1), "{stranger:?}");
    assert!(stranger.stderr.contains("--api-ca"), "{stranger:?}");
    // A directory that cannot be is refused before anything is touched.
    let lone = files.path("lone");
    std::fs::create_dir(&lone).unwrap();
    std::fs::write(lone.join("key.pem"), "").unwrap();
    let serve = ["serve", "--device", "mem:256MiB", "--api-tls", lone.to_str().unwrap()];
    refused(&serve, 1, "certificate.pem is not", "both");
}
