//! `farflash attach`: a volume as a local file.

pub(super) mod mounts;
pub(super) mod records;
mod serving;
mod watch;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use clap::Args;
use report::{Align, Table};
use serde_json::{Value, json};
use units::ByteLen;
use user_messages::Failure;
use user_messages::output;
use user_messages::shell;

use self::records::{Entry, StateArgs};
pub(super) use self::serving::not_durable;
use super::api::ApiArgs;
use super::tokens::TokenArgs;
use crate::interval::Interval;

pub(super) const EXAMPLES: &str = "\
The file itself is the volume: it is mounted over an empty file, not into a directory, so that one path is all there \
is to remember. `farflash attach` prints it, programs open it, and `farflash detach` takes it. It is as long as the \
volume, follows its size, and takes reads and writes of any bytes.

The command ends when the file can be used. A process in the background serves it: through FUSE, so no kernel driver \
for NVMe is needed, and without root where `fusermount3` is installed. While the server is away requests wait.

A write has reached the server when it returns; fsync makes it durable there, as with any file.

Examples:
  A volume as a file, and a file system on it:
    farflash attach db-1 --token-file db-1.token --path /srv/db-1.img
    losetup --find --show --direct-io=on /srv/db-1.img
    mkfs.ext4 -b 4096 /dev/loop0 && mount /dev/loop0 /srv/db

  At the default place, which is printed:
    dd if=\"$(farflash attach db-1)\" of=copy.img bs=1M

  The way back:
    umount /srv/db && losetup --detach /dev/loop0 && farflash detach db-1";

#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Name or id of the volume, or tcp://IP:PORT/NQN
    #[arg(value_name = "NAME", required_unless_present = "list")]
    name: Option<String>,
    /// The file that becomes the volume; made if it is not there, otherwise it must be empty
    /// [default: the volume's name in the directory of --state-dir]
    #[arg(long, value_name = "FILE", conflicts_with = "list")]
    path: Option<PathBuf>,
    /// List what is attached
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Print JSON
    #[arg(long, requires = "list")]
    json: bool,
    /// Serve the file until it is detached or a signal comes, instead of in the background
    #[arg(long, conflicts_with = "list")]
    foreground: bool,
    /// Requests under way at a time; further ones wait
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    outstanding: u16,
    /// Memory for the data of requests; at least 1 MiB
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    memory: ByteLen,
    /// Time that requests wait for a server that went away, before they fail
    #[arg(long, value_name = "TIME", default_value = "10m")]
    wait: Interval,
    #[command(flatten)]
    api: ApiArgs,
    #[command(flatten)]
    tokens: TokenArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Tell the path on standard output when the file can be used, and go into the background
    #[arg(long, hide = true, conflicts_with_all = ["list", "foreground"])]
    report_ready: bool,
}

impl Attach {
    pub(super) fn run(self) -> Result<(), Failure> {
        match () {
            () if self.list => self.show(),
            () if self.report_ready => {
                // Ctrl-C is for the command that waits, which tells by the end of the pipe.
                let _ = rustix::process::setsid();
                // It was started by another name.
                let _ = rustix::thread::set_name(c"farflash");
                serving::serve(&self)
            }
            () if self.foreground => serving::serve(&self),
            () => in_background(),
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn show(&self) -> Result<(), Failure> {
        let entries = self.state.directory()?.entries();
        for entry in entries.iter().filter(|entry| !entry.is_alive) {
            let (name, word) = (&entry.record.volume, shell::word(&entry.record.volume));
            output::note(&format!(
                "the process that served {name} was killed: `farflash attach {word}` attaches it again, `farflash \
                 detach {word}` forgets it"
            ));
        }
        output::print("give the list somewhere to go", |out: &mut dyn Write| {
            if self.json {
                let entries: Vec<Value> = entries.iter().map(document).collect();
                let document = json!({ "attached": entries });
                return writeln!(out, "{}", serde_json::to_string_pretty(&document)?);
            }
            write!(out, "{}", table(&entries).to_text())
        })
    }
}

/// Has a process of its own serve the file, with the same arguments, and waits until it can be used.
fn in_background() -> Result<(), Failure> {
    let arguments = std::env::args_os().skip(2);
    let not_started = |error: std::io::Error| {
        let what = format!("no process can be started to serve the file: {error}");
        Failure::runtime(what, "raise the limit on processes (ulimit -u), or use --foreground")
    };
    // By this name the program is there even if it was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("farflash").args(["attach", "--report-ready"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(not_started)?;
    let mut path = Vec::new();
    let output = child.stdout.take().map(BufReader::new);
    let read = output.map_or(Ok(0), |mut output| output.read_until(b'\n', &mut path));
    if read.is_ok() && path.pop() == Some(b'\n') {
        let path = PathBuf::from(OsString::from_vec(path));
        let remedy = "the volume is attached all the same: see `farflash attach --list`";
        return output::print(remedy, |out| writeln!(out, "{}", path.display()));
    }
    match child.wait().map_err(not_started)?.code() {
        // It has said why on stderr, which is also this process's.
        Some(code) => process::exit(code),
        None => Err(Failure::runtime(
            "the process that was to serve the file was killed",
            "look at `dmesg` for the reason, such as too little memory",
        )),
    }
}

fn state(entry: &Entry) -> &'static str {
    match (entry.is_alive, entry.record.waits_since) {
        (false, _) => "dead",
        (true, Some(_)) => "waiting",
        (true, None) => "attached",
    }
}

fn document(entry: &Entry) -> Value {
    let record = &entry.record;
    json!({
        "volume": record.volume,
        "id": record.id,
        "path": record.path,
        "size_bytes": record.size_bytes,
        "state": state(entry),
        "process": record.process,
        "loop_devices": mounts::loop_devices_on(&record.path),
        "waits_since": record.waits_since,
        "requests_by": if record.by_ring { "io_uring" } else { "/dev/fuse" },
    })
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(&[
        ("VOLUME", Align::Left),
        ("PATH", Align::Left),
        ("SIZE", Align::Right),
        ("STATE", Align::Left),
        ("PROCESS", Align::Right),
        ("LOOP DEVICES", Align::Left),
    ]);
    for entry in entries {
        let record = &entry.record;
        let loops = mounts::loop_devices_on(&record.path).join(" ");
        table.row([
            record.volume.clone(),
            record.path.display().to_string(),
            ByteLen(record.size_bytes).to_string(),
            state(entry).to_owned(),
            record.process.to_string(),
            if loops.is_empty() { "-".to_owned() } else { loops },
        ]);
    }
    table
}

/// Refuses to attach what is attached.
fn attached_already(entry: &Entry) -> Failure {
    let records::Record { volume, path, process, .. } = &entry.record;
    let what = format!("{volume} is attached at {}, served by process {process}", path.display());
    let word = shell::word(volume);
    Failure::runtime(what, format!("use that file, or run `farflash detach {word}` first"))
}

/// The absolute form of a path, without links; its last part need not be there.
pub(super) fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    if let Ok(there) = whole.canonicalize() {
        return Ok(there);
    }
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
        _ => Ok(whole),
    }
}
