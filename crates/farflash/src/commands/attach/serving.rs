//! The process that serves an attached volume: opens it, mounts it, and stays until it is unmounted.

use std::fs::{self, OpenOptions as FileOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use attach::{Handle, Limits, MountError, Mounted, NoRing, Options};
use farflash_client::{Cluster, Error, OpenOptions, Target, Volume};
use process_limits::threads;
use rustix::io::Errno;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use user_messages::Failure;
use user_messages::output::note;
use user_messages::shell;

use super::mounts::{self, SOURCE};
use super::records::{Held, Record, StateDirectory};
use super::watch::{Change, Troubles, Watch};
use super::{Attach, absolute, attached_already};

/// Interval at which size and progress are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Opens and mounts the volume, and serves it until it is unmounted.
pub(super) fn serve(attach: &Attach) -> Result<(), Failure> {
    let state = attach.state.directory()?;
    state.make()?;
    let name = attach.name();
    if let Some(entry) = state.entries().iter().find(|it| it.is_alive && it.is(name, None)) {
        return Err(attached_already(entry));
    }
    // A file system on the file may have to write before there is memory: this process, and the threads that it
    // starts from now on, are not to wait for that. It takes root, and without it there is less safety, not less function.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let volume = open(attach)?;
    let id = id_of(&volume);
    let held = hold(&state, &id)?;
    let path = match &attach.path {
        Some(path) => path.clone(),
        // An address is no name of a file.
        None => state.file_of(if name.contains('/') { &id } else { name }),
    };
    let place = match take_place(&state, &id, &path) {
        Ok(place) => place,
        Err(failure) => {
            held.remove();
            return Err(failure);
        }
    };
    let record = Record {
        volume: name.to_owned(),
        id,
        path: place.path,
        process: std::process::id(),
        size_bytes: volume.opened().size_bytes,
        made_file: place.is_made,
        waits_since: None,
        by_ring: false,
    };
    let mut serving = Serving { volume, held, record, watch: Watch::default() };
    let served = serving.mount_and_stay(attach, &state);
    let Serving { volume, held, record, .. } = serving;
    let _ = volume.close();
    record.remove_file();
    held.remove();
    served
}

/// Opens the volume as the libraries do.
fn open(attach: &Attach) -> Result<Volume, Failure> {
    let name = attach.name();
    let credentials = attach.tokens.credentials()?;
    let secrets = credentials.map(|it| {
        let controller = it.controller_secret.map(|secret| secret.reveal().to_string());
        (it.secret.reveal().to_string(), controller)
    });
    let (token, controller_token) = secrets.map_or((None, None), |(one, two)| (Some(one), two));
    let recovery_timeout = attach.wait.0;
    let options =
        OpenOptions { token, controller_token, recovery_timeout, ..OpenOptions::default() };
    let opened = match name.parse::<Target>() {
        Ok(Target::Name(name)) => {
            let cluster = Cluster::with(&attach.api.cluster()?);
            cluster.and_then(|cluster| cluster.open(&name, &options))
        }
        Ok(Target::Place { .. }) => farflash_client::open(name, &options),
        Err(error) => Err(Error::Target(error)),
    };
    let volume = opened.map_err(|error| not_opened(name, &error))?;
    let metadata = volume.opened().metadata_size;
    if metadata > 0 {
        let what = format!(
            "the blocks of {name} have {metadata} bytes of metadata each, and a file has none"
        );
        let remedy = "attach a volume that was made without --metadata; programs reach this one by the libraries";
        return Err(Failure::usage(what, remedy));
    }
    Ok(volume)
}

fn not_opened(name: &str, error: &Error) -> Failure {
    use farflash_client::ErrorKind as Kind;
    let what = format!("{name} cannot be opened: {error}");
    let word = shell::word(name);
    match error.kind() {
        Kind::InvalidArgument => Failure::usage(
            what,
            "name a volume as `farflash volume list` shows it, or give tcp://IP:PORT/NQN",
        ),
        Kind::NotFound => {
            Failure::runtime(what, "see `farflash volume list` for the volumes that there are")
        }
        Kind::PermissionDenied => Failure::runtime(
            what,
            format!(
                "give the volume's token with --token-file or FARFLASH_TOKEN, as `farflash volume create` showed it, \
                 and see `farflash volume show {word}` for who may open it"
            ),
        ),
        Kind::Unreachable => Failure::runtime(
            what,
            "see that the server runs, and give its API's address with --api or FARFLASH_API",
        ),
        Kind::Untrusted => Failure::runtime(
            what,
            "name the file with the API's certificate with --api-ca or FARFLASH_API_CA",
        ),
        Kind::Unproven => {
            Failure::runtime(what, "see that this is the server meant, or give no controller token")
        }
        _ => Failure::runtime(what, "look at the server's log"),
    }
}

/// Returns the id of a volume, for life; of a foreign target its NQN.
fn id_of(volume: &Volume) -> String {
    let opened = volume.opened();
    opened.uuid().map_or_else(|| opened.nqn.to_string(), |id| id.to_string())
}

fn hold(state: &StateDirectory, id: &str) -> Result<Held, Failure> {
    match state.hold(id) {
        Ok(Some(held)) => Ok(held),
        Ok(None) => Err(match state.entries().iter().find(|entry| entry.is(id, None)) {
            Some(entry) => attached_already(entry),
            None => Failure::runtime(
                "another process is attaching this volume just now",
                "see `farflash attach --list`",
            ),
        }),
        Err(error) => Err(Failure::runtime(
            format!("the list of what is attached cannot be written: {error}"),
            "name a directory of yours with --state-dir",
        )),
    }
}

/// The file over which the volume is mounted.
struct Place {
    path: PathBuf,
    /// It was made for that.
    is_made: bool,
}

/// Clears away what killed processes left of this volume and at this path, and finds or makes the file.
fn take_place(state: &StateDirectory, id: &str, path: &Path) -> Result<Place, Failure> {
    let path = absolute(path).map_err(|error| {
        let what = format!("{} cannot be used: {error}", path.display());
        let parent = path.parent().unwrap_or(path);
        Failure::usage(
            what,
            format!("make its directory first: `mkdir -p {}`", shell::path(parent)),
        )
    })?;
    for entry in state.entries() {
        let is_here = entry.record.path == path;
        if entry.record.id != id && entry.is_alive && is_here {
            return Err(attached_already(&entry));
        }
        // This volume's record is held by this process, so its lock says nothing.
        if entry.record.id == id || (is_here && !entry.is_alive) {
            mounts::clear_dead(&entry.record.path)?;
            entry.record.remove_file();
        }
    }
    if let Some(mount) = mounts::mount_at(&path) {
        let word = shell::path(&path);
        let what = format!("{} is mounted at {} already", mount.source, path.display());
        match mount.is_ours() {
            true if mounts::is_dead(&path) => mounts::clear_dead(&path)?,
            true => {
                return Err(Failure::runtime(what, format!("run `farflash detach {word}` first")));
            }
            false => {
                return Err(Failure::runtime(
                    what,
                    format!("name another file, or run `umount {word}` first"),
                ));
            }
        }
    }
    file_at(&path).map(|is_made| Place { path, is_made })
}

/// Finds an empty file, or makes one; true if it made it.
fn file_at(path: &Path) -> Result<bool, Failure> {
    let shown = path.display();
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let made = FileOptions::new().write(true).create_new(true).mode(0o600).open(path);
            return made.map(|_| true).map_err(|error| {
                let what = format!("{shown} cannot be made: {error}");
                Failure::runtime(what, "name a file that can be made with --path")
            });
        }
        Err(error) => {
            let what = format!("{shown} cannot be used: {error}");
            return Err(Failure::runtime(what, "name another file with --path"));
        }
    };
    match () {
        () if metadata.is_dir() => {
            let remedy = format!("name a file: --path {}", shell::path(&path.join("NAME")));
            Err(Failure::usage(format!("{shown} is a directory"), remedy))
        }
        () if !metadata.is_file() => {
            Err(Failure::usage(format!("{shown} is no file"), "name a new file with --path"))
        }
        () if metadata.len() > 0 => {
            let what = format!("{shown} is not empty, and the volume would hide what is in it");
            Err(Failure::usage(what, "name a new file with --path"))
        }
        () => Ok(false),
    }
}

struct Serving {
    volume: Volume,
    held: Held,
    record: Record,
    watch: Watch,
}

impl Serving {
    fn mount_and_stay(&mut self, attach: &Attach, state: &StateDirectory) -> Result<(), Failure> {
        let path = self.record.path.clone();
        let mounted = self.mount(attach)?;
        self.record.by_ring = mounted.no_ring().is_none();
        if let Some(why) = mounted.no_ring()
            && let Some(remedy) = ring_remedy(why)
        {
            note(&format!("requests come by /dev/fuse: {why}\n hint: {remedy}"));
        }
        let told = self.write_record().and_then(|()| match attach.report_ready {
            true => go_into_background(&path, &state.log_of(&self.record.id)),
            false => {
                note(&format!("{} is attached at {}", self.record.volume, path.display()));
                // Where no service manager listens this does nothing.
                sd_notify::notify(&[sd_notify::NotifyState::Ready])
            }
        });
        if let Err(error) = told {
            let _ = mounts::unmount(&path, true);
            let what = format!("the volume cannot be kept attached: {error}");
            return Err(Failure::runtime(what, "give the list of --state-dir space"));
        }
        self.stay(mounted)
    }

    fn mount(&self, attach: &Attach) -> Result<Mounted<Volume>, Failure> {
        let bytes = usize::try_from(attach.memory.0).unwrap_or(usize::MAX);
        let options = Options {
            limits: Limits { requests: attach.outstanding.into(), bytes },
            owner: (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
            time: SystemTime::now(),
            source: format!("{SOURCE}{}", self.record.volume),
        };
        let troubles = Troubles::default();
        let path = &self.record.path;
        let tell = move |trouble: &attach::Trouble| troubles.tell(Instant::now(), trouble);
        let mounted =
            attach::mount(self.volume.clone(), self.record.size_bytes, path, options, tell);
        mounted.map_err(|error| match error {
            MountError::Memory { .. } => {
                Failure::usage(error.to_string(), "give --memory 1MiB or more")
            }
            MountError::Mount(ref why) => Failure::runtime(error.to_string(), mount_remedy(why)),
        })
    }

    /// Serves until the file is unmounted.
    fn stay(&mut self, mounted: Mounted<Volume>) -> Result<(), Failure> {
        let handle = mounted.handle();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| no_signals(&error))?;
        let (sender, mut ended) = tokio::sync::mpsc::channel(1);
        let waits = std::thread::Builder::new().name("attached".to_owned());
        let waiting = waits.spawn(move || {
            let _ = mounted.wait();
            let _ = sender.blocking_send(());
        });
        waiting.map_err(|error| no_signals(&error))?;
        let stayed = runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut hang_up = signal(SignalKind::hangup())?;
            let mut look = tokio::time::interval(LOOK_EVERY);
            let mut leaving = Leaving::default();
            loop {
                tokio::select! {
                    _ = ended.recv() => return Ok(()),
                    _ = look.tick() => self.look(&handle),
                    _ = terminate.recv() => leaving.on_signal(self),
                    _ = interrupt.recv() => leaving.on_signal(self),
                    _ = hang_up.recv() => leaving.on_signal(self),
                }
            }
        });
        // A flush may still wait for a server.
        runtime.shutdown_background();
        stayed.map_err(|error| no_signals(&error))
    }

    /// Follows the volume's size, and notes when the server does not answer.
    fn look(&mut self, handle: &Handle<Volume>) {
        let size = self.volume.size().unwrap_or(self.record.size_bytes);
        let mut is_changed = size != self.record.size_bytes;
        self.record.size_bytes = size;
        if let Err(error) = handle.resize(size) {
            note(&format!("the kernel was not told that the volume has {size} bytes now: {error}"));
        }
        if let Some(errno) = handle.ring_failure()
            && std::mem::take(&mut self.record.by_ring)
        {
            let why = io::Error::from_raw_os_error(errno);
            note(&format!(
                "requests come by /dev/fuse: the kernel refuses them by io_uring: {why}"
            ));
            is_changed = true;
        }
        match self.watch.look(Instant::now(), handle.progress()) {
            Some(Change::Waiting(lasts)) => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.record.waits_since = Some(since.saturating_sub(lasts).as_secs());
                is_changed = true;
                note("the server does not answer; requests wait for it");
            }
            Some(Change::Answered(lasts)) => {
                self.record.waits_since = None;
                is_changed = true;
                note(&format!("the server answers again, after {} s", lasts.as_secs()));
            }
            None => {}
        }
        if is_changed && let Err(error) = self.write_record() {
            note(&format!("the list of what is attached cannot be brought up to date: {error}"));
        }
    }

    fn write_record(&self) -> io::Result<()> {
        self.held.write(&self.record)
    }
}

fn no_signals(error: &io::Error) -> Failure {
    let what = format!("the file cannot be served: {error}");
    Failure::runtime(what, "raise the limits on open files and threads (ulimit -n, -u)")
}

/// Advice for requests that do not come by io_uring. None where the kernel does not offer it, as most do not: the page
/// about attaching tells how to switch it on.
fn ring_remedy(why: &NoRing) -> Option<String> {
    match why {
        NoRing::NotOffered => None,
        NoRing::Bounds { least: Limits { requests, bytes }, .. } => Some(format!(
            "attach it with --outstanding {requests} --memory {bytes}B or more of each"
        )),
        NoRing::Ring(error) => Some(error.remedy().to_owned()),
    }
}

/// Advice for a file system that cannot be mounted: a limit of this machine has a name of its own.
fn mount_remedy(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::AGAIN) => threads::remedy(),
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit on open files (ulimit -n)".to_owned(),
        Some(Errno::NOSPC) => {
            "there are as many mounts as the kernel allows: raise `sysctl fs.mount-max`, or unmount what is not needed".to_owned()
        }
        // The words of `fusermount3`.
        None if error.to_string().contains("mount_max") => {
            "`farflash detach` what is not needed, let root attach it, or raise mount_max in /etc/fuse.conf".to_owned()
        }
        _ => "see that /dev/fuse is there (`modprobe fuse`; in a container `--device /dev/fuse --cap-add SYS_ADMIN`), and run this \
              as root, or install fuse3"
            .to_owned(),
    }
}

/// The end by a signal: the first one detaches unless the file is in use, a second one does so all the same.
#[derive(Default)]
struct Leaving {
    is_tried: bool,
}

impl Leaving {
    fn on_signal(&mut self, serving: &Serving) {
        let path = serving.record.path.clone();
        if std::mem::replace(&mut self.is_tried, true) {
            let _ = mounts::unmount(&path, true);
            // Programs that have it open get errors from now on, and what waited for the server is given up.
            serving.record.remove_file();
            std::process::exit(1);
        }
        let volume = serving.volume.clone();
        let leave = move || {
            let flush = || volume.flush().map_err(|error| not_durable(&path, &error.to_string()));
            if let Err(failure) = mounts::leave(&path, flush) {
                note(&format!("{failure}\n hint: a second signal ends this all the same"));
            }
        };
        // A flush may wait for a server for longer than this process is to live.
        if let Err(error) = std::thread::Builder::new().name("leaving".to_owned()).spawn(leave) {
            self.is_tried = false;
            let why = threads::lacking(&error);
            note(
                &Failure::runtime(format!("the volume stays attached: {why}"), threads::remedy())
                    .to_string(),
            );
        }
    }
}

/// The failure of a flush, after which the volume stays attached.
pub(in crate::commands) fn not_durable(path: &Path, error: &str) -> Failure {
    let what = format!("what was written to {} cannot be made durable: {error}", path.display());
    Failure::runtime(what, "see that the server runs, and detach again; the volume stays attached")
}

/// Tells the command that waits that the file can be used, and lets go of its terminal.
fn go_into_background(path: &Path, log: &Path) -> io::Result<()> {
    let null = FileOptions::new().read(true).write(true).open("/dev/null")?;
    let log = FileOptions::new().append(true).create(true).mode(0o600).open(log)?;
    let mut out = io::stdout().lock();
    out.write_all(path.as_os_str().as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()?;
    drop(out);
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&log)?;
    // The directory in which it was called can be unmounted.
    std::env::set_current_dir("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_the_limit_that_refuses_a_mount() {
        let of = |errno: Errno| mount_remedy(&errno.into());
        assert!(of(Errno::AGAIN).contains("threads"), "{}", of(Errno::AGAIN));
        assert!(of(Errno::MFILE).contains("ulimit -n"));
        assert!(of(Errno::NOSPC).contains("fs.mount-max"));
        assert!(of(Errno::NOENT).contains("/dev/fuse"));
        let said = "fusermount3: too many FUSE filesystems mounted; mount_max=N can be increased in /etc/fuse.conf\n";
        assert!(mount_remedy(&io::Error::other(said)).contains("farflash detach"));
        assert!(
            mount_remedy(&io::Error::other("fusermount3: fuse device not found"))
                .contains("modprobe")
        );
    }
}
