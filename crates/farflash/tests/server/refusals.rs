//! Refusals of the program: each with its exit code, its reason, and advice.

use std::net::TcpListener;

use crate::support::{Files, Server, farflash, own_host, refused, run, succeed};

const SERVE: [&str; 8] =
    ["serve", "--auth", "off", "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--device"];

fn serve<'a>(device: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&SERVE[..], &[device], more].concat()
}

#[test]
fn words_that_make_no_sense_are_usage_errors() {
    for (arguments, part) in [
        (&["serve", "--device", "floppy:a"][..], "`floppy:` is no kind of device"),
        (&["serve", "--device", "/srv/flash.img"], "a file or drive is file:/srv/flash.img"),
        (&["serve", "--device", "file:"], "not followed by a path"),
        (&["serve", "--device", "file:a,size=1 elephant"], "`elephant` is no unit"),
        (&["serve", "--device", "mem:12345"], "multiple of 4096"),
        (&["serve", "--device", "mem:1GiB,flush=never"], "none but the ceiling"),
        (&["format", "--device", "file:a,policy=drr"], "the ceiling that `serve` takes"),
        (&["api-token", "Ops"], "a user's name has"),
        (&["serve", "--cores", "0,0"], "core 0 is listed twice"),
        (&["serve", "--cores", "x"], "`x` is no core"),
        (&["serve", "--auth", "maybe"], "off"),
        (&["serve", "--listen", "localhost:4420"], "`localhost:4420` is no address; write IP:PORT"),
        (&["serve", "--api", "127.0.0.1"], "`127.0.0.1` is no address; write IP:PORT"),
        (&["serve", "--discovery", "on"], "or `off`"),
        (&["discover", "localhost"], "`localhost` is no address; write IP:PORT"),
        (&["serve", "--connections-max", "0"], "--connections-max"),
        (&["volume", "create", "UPPER", "--size", "1GiB"], "only a-z"),
        (&["volume", "create", "a", "--size", "1000"], "multiple of 4096"),
        (&["volume", "create", "a", "--size", "0"], "at least one block"),
        (&["volume", "create", "a", "--size", "1GiB", "--metadata", "12"], "8, 16 or 64"),
        (&["volume", "create", "a", "--size", "9PiB5"], "no unit"),
        (&["volume", "create", "a"], "--size"),
        (&["volume", "change-auth", "a", "--grace", "soon"], "write 30m, 12h or 7d"),
        (&["device", "forget", "file:/dev/nvme1n1"], "host list --json"),
        (&["floppy"], "floppy"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{arguments:?}: {outcome:?}");
    }
}

#[test]
fn serve_says_what_is_missing() {
    refused(&["serve", "--auth", "off"], 2, "no device is given", "--device file:PATH");
    let two = serve("mem:1GiB", &["--device", "mem:2GiB", "--map-memory", "7MiB"]);
    refused(&two, 2, "too little", "at least 4MiB for each of the 2 devices");
    for (size, part) in [("1MiB", "too little"), ("1PiB", "of this machine")] {
        refused(&serve("mem:1GiB", &["--core-memory", size]), 2, part, "between 32 MiB and");
    }
}

#[test]
fn cores_ports_and_addresses_are_checked() {
    refused(&serve("mem:1GiB", &["--cores", "999"]), 2, "no core 999", "with --cores");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--api", "--discovery"] {
        let arguments = ["serve", "--device", "mem:64MiB", "--auth", "off", flag, &address];
        let free = [("--listen", "127.0.0.1:0"), ("--api", "127.0.0.1:0")];
        let others = free.iter().filter(|(other, _)| *other != flag);
        let others: Vec<&str> = others.flat_map(|(flag, address)| [*flag, *address]).collect();
        refused(&[&arguments[..], &others].concat(), 1, "the port is in use", flag);
    }
    let foreign = ["serve", "--device", "mem:64MiB", "--auth", "off", "--api", "127.0.0.1:0"];
    let foreign = [&foreign[..], &["--listen", "192.0.2.1:0"]].concat();
    refused(&foreign, 1, "no address of this host", "--listen");
    let anywhere = ["serve", "--device", "mem:64MiB", "--auth", "off", "--listen", "0.0.0.0:4420"];
    refused(&anywhere, 2, "cannot be told", "--advertise");
    let same = ["serve", "--device", "mem:64MiB", "--auth", "off", "--api", "127.0.0.1:4420"];
    refused(&same, 2, "both a portal and the API", "--api");
    let high = ["serve", "--device", "mem:64MiB", "--auth", "off", "--listen", "127.0.0.1:65535"];
    if let Some(cores) = crate::support::cores(2) {
        refused(&[&high[..], &["--cores", &cores]].concat(), 2, "past 65535", "--listen");
    }
}

/// A refusal comes before anything is touched: no file is made, and a blank device stays blank.
///
/// Method: a device that is blank and one that is still to be made, both to be formatted, and mistakes of each kind.
#[test]
fn a_refusal_comes_before_anything_is_touched() {
    let files = Files::new();
    let device = |name| format!("{},size=256MiB", files.device(name));
    let (blank, empty, new) = (device("blank"), device("empty"), device("new"));
    std::fs::File::create(files.path("blank")).unwrap().set_len(256 << 20).unwrap();
    std::fs::File::create(files.path("empty")).unwrap();
    let owned = device("owned");
    succeed(&["format", "--device", &owned]);
    let _owner = Server::start(&owned);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let (users, tls) = (files.path("users.toml"), files.path("tls"));
    std::fs::write(&users, "[[operator]]\nname = \"x\"\ntoken_sha256 = \"1\"").unwrap();
    std::fs::write(&tls, "no directory").unwrap();
    let [users, tls] = [&users, &tls].map(|path| path.to_str().unwrap());
    let small = format!("{},size=1MiB", files.device("small"));
    for (mistake, part) in [
        (&["--cores", "999"][..], "no core 999"),
        (&["--listen", &taken], "the port is in use"),
        (&["--api", &taken], "the port is in use"),
        (&["--discovery", &taken], "the port is in use"),
        (&["--listen", "192.0.2.1:0"], "no address of this host"),
        (&["--core-memory", "1PiB"], "of this machine"),
        (&["--api-users", users], "64 hexadecimal digits"),
        (&["--api-tls", tls], "tls"),
        (&["--audit-log", "/no/such/place"], "/no/such/place"),
        (&["--device", &owned], "is in use"),
        (&["--device", &small], "cannot be formatted"),
        (&["--device", "mem:1PiB"], "are available"),
    ] {
        let given = |flag: &str| mistake[0] == flag;
        let mut arguments = vec!["serve", "--auth", "off", "--format-if-blank", "--create"];
        for device in [&blank, &empty, &new] {
            arguments.extend(["--device", device]);
        }
        for flag in ["--listen", "--api"].into_iter().filter(|flag| !given(flag)) {
            arguments.extend([flag, "127.0.0.1:0"]);
        }
        arguments.extend(mistake);
        let outcome = run(&arguments);
        assert!(matches!(outcome.code, Some(1 | 2)), "{mistake:?}: {outcome:?}");
        assert!(outcome.stderr.contains(part), "{mistake:?}: {outcome:?}");
        for made in ["new", "small"] {
            assert!(!files.path(made).exists(), "{mistake:?}: {made} was made");
        }
        assert_eq!(std::fs::metadata(files.path("empty")).unwrap().len(), 0, "{mistake:?}");
        let blank = std::fs::metadata(files.path("blank")).unwrap();
        let is_untouched = std::os::unix::fs::MetadataExt::blocks(&blank) == 0;
        assert!(blank.len() == 256 << 20 && is_untouched, "{mistake:?}: it was written to");
    }
}

#[test]
fn memory_that_is_not_there_is_refused() {
    refused(&serve("mem:1PiB", &[]), 1, "are available", "--device mem:");
    refused(&serve("mem:4000PiB", &[]), 2, "cannot have", "--device mem:");
}

#[test]
fn a_configuration_file_is_checked() {
    let files = Files::new();
    let path = files.path("farflash.toml");
    let name = path.to_str().unwrap();
    refused(&["serve", "--config", name], 1, "cannot be read", "--config");
    std::fs::write(&path, "auth = \"off\"\n\ndevcies = []\n").unwrap();
    refused(&["serve", "--config", name], 2, "line 3: unknown field `devcies`", "--help");
    std::fs::write(&path, "auth = \"off\"\ncores = 0\n").unwrap();
    refused(&["serve", "--config", name], 2, "line 2: `cores`: write a list of CPUs", "--help");
    std::fs::write(&path, "auth = \"off\"\ncores = [999]\ndevices = [\"mem:1GiB\"]").unwrap();
    refused(&["serve", "--config", name], 2, "no core 999", "--cores");
    std::fs::write(&path, "#".repeat((1 << 20) + 1)).unwrap();
    refused(&["serve", "--config", name], 2, "larger than 1 MiB", "--config");
    // What has no length, and what has no end.
    let directory = files.path("").display().to_string();
    for special in ["/dev/zero", "/dev/null", &directory] {
        refused(&["serve", "--config", special], 2, "is no regular file", "--config");
    }
}

#[test]
fn serve_takes_only_a_device_that_was_formatted_for_it() {
    let files = Files::new();
    let device = files.device("a");
    refused(&serve(&device, &[]), 1, "does not exist", "farflash format --device file:");
    let sized = format!("{device},size=256MiB");
    refused(&serve(&sized, &[]), 1, "does not exist", &format!("format --device {sized}`"));
    std::fs::File::create(files.path("a")).unwrap().set_len(256 << 20).unwrap();
    refused(&serve(&device, &[]), 1, "is not formatted", "--format-if-blank");
    let junk = [0xA5; 8192];
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(files.path("a")).unwrap(),
        &junk,
        (100 << 20) + 40_960,
    )
    .unwrap();
    let blank = ["--format-if-blank", "--create"];
    refused(&serve(&device, &blank), 1, "unknown data at byte 104898560", GIVE_UP);
    std::fs::write(files.path("b"), [0xA5; 1 << 20]).unwrap();
    let b = files.device("b");
    refused(&serve(&b, &[]), 1, "holds something else (unknown data)", GIVE_UP);
    refused(&serve(&b, &blank), 1, "holds something else", GIVE_UP);
    refused(&serve(&files.device(""), &[]), 1, "neither a regular file", "--device file:PATH");
    std::fs::write(files.path("c"), "tiny").unwrap();
    refused(&serve(&files.device("c"), &[]), 1, "holds 4 bytes", "farflash format");
    let sized = format!("{},size=256MiB", files.device("c"));
    refused(&serve(&sized, &[]), 1, "holds 4 bytes", &format!("format --device {sized}`"));
}

#[test]
fn format_does_not_destroy_unless_told() {
    let files = Files::new();
    let device = files.device("a");
    let sized = format!("{device},size=256MiB");
    refused(&["format", "--device", &device], 1, "does not exist", "size=8GiB");
    refused(&["format", "--device", "mem:1GiB"], 2, "needs no format", "serve --device mem:1GiB");
    let slow = "model:p3700,scale=0.1";
    refused(
        &["format", "--device", slow],
        2,
        "needs no format",
        &format!("serve --device {slow}`"),
    );
    let shown = succeed(&["format", "--device", &sized]);
    assert!(shown.contains("is formatted (256 MiB)"), "{shown}");
    assert!(shown.contains(&format!("farflash serve --device {device}")), "{shown}");
    refused(&["format", "--device", &device], 1, "holds a farflash format", "How to give it up");
    succeed(&["format", "--device", &device, "--force"]);
    let other = format!("{device},size=512MiB");
    refused(&["format", "--device", &other], 1, "has 256 MiB", "leave size= out");
    std::fs::write(files.path("b"), [0xA5; 1 << 20]).unwrap();
    refused(&["format", "--device", &files.device("b")], 1, "unknown data", GIVE_UP);
    let small = format!("{},size=1MiB", files.device("c"));
    refused(&["format", "--device", &small], 1, "cannot be formatted", "size=");
    assert!(!files.path("c").exists(), "a file made in vain is removed");
    // What was there before stays, as it was.
    std::fs::write(files.path("d"), "").unwrap();
    let small = format!("{},size=1MiB", files.device("d"));
    refused(&["format", "--device", &small], 1, "cannot be formatted", "size=");
    assert_eq!(std::fs::metadata(files.path("d")).unwrap().len(), 0);
    let lost = format!("{},size=1GiB", files.device("no/such/place"));
    let directory = files.path("no/such").display().to_string();
    refused(&["format", "--device", &lost], 1, "there is no directory", &directory);
    let sized = format!("{},size=256MiB", files.device("d"));
    let shown = succeed(&["format", "--device", &sized, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["size_bytes"], 256 << 20);
    assert_eq!(shown["device"], files.device("d"));
}

/// An empty file belongs to the process that has it open as a device, and is not resized under it.
#[test]
fn an_empty_file_in_use_is_left_alone() {
    let files = Files::new();
    std::fs::write(files.path("a"), "").unwrap();
    let owner = std::fs::File::open(files.path("a")).unwrap();
    rustix::fs::flock(&owner, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let sized = format!("{},size=256MiB", files.device("a"));
    refused(&["format", "--device", &sized], 1, "is in use", "stop the other server");
    assert_eq!(owner.metadata().unwrap().len(), 0);
}

/// A device that holds something may have been one of ours: no command that destroys it is told.
const GIVE_UP: &str = "How to give up what is there is in `farflash format --help`";

/// Formats a file and changes both of its superblocks.
fn with_changed_superblocks(files: &Files, change: impl Fn(&mut [u8])) -> String {
    use std::os::unix::fs::FileExt;
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(files.path("a")).unwrap();
    for place in [0, (256 << 20) - 4096] {
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, place).unwrap();
        change(&mut block);
        file.write_all_at(&block, place).unwrap();
    }
    device
}

/// Method: change both superblocks without mending their checksums.
#[test]
fn a_damaged_superblock_is_refused() {
    let files = Files::new();
    let device = with_changed_superblocks(&files, |block| block[64..128].fill(0xFF));
    for more in [&[][..], &["--format-if-blank"]] {
        let what = "holds a damaged farflash format";
        refused(&serve(&device, more), 1, what, "restore it from a copy");
    }
}

/// Method: write the next version into both superblocks, and checksums that match, as a newer program
/// would leave them.
#[test]
fn the_superblock_of_a_newer_version_is_refused() {
    let files = Files::new();
    let device = with_changed_superblocks(&files, |block| {
        let version = u32::from_le_bytes(block[12..16].try_into().unwrap());
        block[12..16].copy_from_slice(&(version + 1).to_le_bytes());
        let crc = checksum::crc32c(&block[12..]);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
    });
    let what = "which this program does not know";
    for more in [&[][..], &["--format-if-blank"]] {
        refused(&serve(&device, more), 1, what, "the program that made it");
    }
    refused(&["format", "--device", &device], 1, what, "How to give it up");
    // What the message names does what it says.
    succeed(&["format", "--device", &device, "--force"]);
    drop(Server::start(&device));
}

#[test]
fn a_device_that_has_shrunk_is_refused() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let file = std::fs::OpenOptions::new().write(true).open(files.path("a")).unwrap();
    file.set_len(128 << 20).unwrap();
    drop(file);
    refused(&serve(&device, &[]), 1, "formatted with 65536 blocks", "its former size");
}

#[test]
fn a_device_has_one_server_at_a_time() {
    let files = Files::new();
    let device = files.device("a");
    succeed(&["format", "--device", &format!("{device},size=256MiB")]);
    let server = Server::start(&device);
    refused(&serve(&device, &[]), 1, "is in use", "stop the other server");
    refused(&["format", "--device", &device, "--force"], 1, "is in use", "stop the other server");
    server.signal("KILL");
    server.wait();
    let server = Server::start(&device);
    server.signal("TERM");
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn commands_without_a_server_say_so() {
    let api = format!("http://{}:7420", own_host());
    refused(&["volume", "list", "--api", &api], 1, "cannot be reached", "farflash serve");
    refused(&["volume", "list", "--api", "nonsense"], 2, "no API address", "--api");
    let outcome: crate::support::Outcome =
        farflash(&["volume", "list"]).env("FARFLASH_API", &api).output().unwrap().into();
    assert!(outcome.stderr.contains(&api), "{outcome:?}");
    let graced = ["volume", "change-auth", "v", "--grace", "30s", "--api", &api];
    refused(&graced, 1, "cannot be reached", "farflash serve");
    let outcome: crate::support::Outcome =
        farflash(&["volume", "list"]).env("FARFLASH_API_CA", "").output().unwrap().into();
    assert!(outcome.code == Some(2) && outcome.stderr.contains("FARFLASH_API_CA"), "{outcome:?}");
}

#[test]
fn where_no_device_is_lost_none_is_to_be_chosen() {
    let server = Server::start("mem:64MiB");
    let id = "00000000-0000-4000-8000-000000000000";
    let forget = ["device", "forget", id, "--api", &server.api];
    refused(&forget, 1, id, "there is none to choose");
}

#[test]
fn help_names_every_command_and_shows_examples() {
    let help = succeed(&["--help"]);
    for word in ["format", "serve", "volume", "Examples:", "Exit codes:"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let serve = succeed(&["serve", "--help"]);
    for word in ["--device", "--cores", "--advertise", "--format-if-blank", "devices = ["] {
        assert!(serve.contains(word), "{word}: {serve}");
    }
    assert!(succeed(&["--version"]).starts_with("farflash "));
}

/// A file that is missing is made by `format` for a server; what else wants one says what is to be there.
#[test]
fn advice_is_that_of_the_command_that_gives_it() {
    let files = Files::new();
    let missing = files.device("missing");
    let sized = format!("{missing},size=1GiB");
    refused(&["fsck", "--device", &missing], 1, "does not exist", "is to be checked");
    refused(&["leave-cluster", "--device", &missing], 1, "does not exist", "has served");
    refused(&["calibrate", &missing], 1, "does not exist", "size=4GiB");
    refused(&["bench", "--target", &missing], 1, "does not exist", "truncate -s 1GiB");
    refused(&["bench", "--target", &sized], 2, "without size=", "leave size= out");
    assert!(!files.path("missing").exists());
}

/// A command that a message tells is run by a shell as it is, whatever the path.
#[test]
fn a_command_that_is_told_can_be_run_as_it_is() {
    let files = Files::new();
    let device = files.device("my image's $(copy); *");
    std::fs::File::create(files.path("my image's $(copy); *")).unwrap().set_len(64 << 20).unwrap();
    let outcome = run(&serve(&device, &[]));
    let told = outcome.stderr.split('`').nth(1).unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(told.starts_with("farflash format --device "), "{outcome:?}");
    let program = std::path::PathBuf::from(farflash(&[]).get_program());
    let path = format!("{}:/usr/bin:/bin", program.parent().unwrap().display());
    let mut shell = std::process::Command::new("sh");
    let ran = shell.args(["-c", told]).env("PATH", path).current_dir(files.path("")).output();
    let ran = crate::support::Outcome::from(ran.unwrap());
    assert_eq!(ran.code, Some(0), "{told}: {ran:?}");
    drop(Server::start(&device));
}

/// Nothing is measured for minutes only to find that its results have no place.
#[test]
fn a_place_for_results_is_looked_for_first() {
    let files = Files::new();
    std::fs::write(files.path("file"), "").unwrap();
    let out = files.path("file/figures").display().to_string();
    let reproduce = ["reproduce", "decibel-13", "--out", &out];
    refused(&reproduce, 1, "no results can be put into", "with --out");
    refused(&["calibrate", "mem:64MiB", "--out", &out], 1, "no results can be put", "with --out");
    refused(&["reproduce"], 2, "no figure is named", "farflash reproduce --list");
}
