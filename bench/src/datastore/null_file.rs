//! A file on remote Flash that does no more than it must: the kernel hands a request to a process, which sends it over TCP to a
//! server, which reads or writes a file past the page cache and answers. The server keeps no map, checksum or journal, and its
//! client neither orders requests nor connects again.
//!
//! Each thread that takes requests from the kernel waits for its answer, and a thread of the server for each connection: as many
//! requests are under way as there are threads. Both sides are in one process, which saves them a change of address space.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use io_traits::Buffer;
use rustix::fs::OFlags;

use crate::process::{Program, run};

/// Requests under way at most: more than the datastore's readers and writers and RocksDB's own threads have.
const THREADS: usize = 64;
/// The longest request.
const BYTES_MAX: usize = 1 << 20;
/// Bytes of a request's header: place, length and kind.
const HEADER_BYTES: usize = 16;
/// Bytes of an answer's header: the error number, or 0. What was read follows.
const ANSWER_BYTES: usize = 4;
/// Size of the file that is served.
const SIZE: u64 = 2 << 30;
const TTL: Duration = Duration::from_secs(1);
/// Limit for the file to be there.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read,
    Write,
    Flush,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Asked {
    kind: Kind,
    offset: u64,
    len: usize,
}

impl Asked {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&self.offset.to_le_bytes());
        let len = u32::try_from(self.len).expect("a request is shorter");
        header[8..12].copy_from_slice(&len.to_le_bytes());
        header[12] = self.kind as u8;
        header
    }

    fn decode(header: &[u8; HEADER_BYTES]) -> io::Result<Self> {
        let [offset @ .., _, _, _, _, _, _, _, _] = *header;
        let [_, _, _, _, _, _, _, _, len @ .., kind, _, _, _] = *header;
        let len = u32::from_le_bytes(len) as usize;
        let kind = match kind {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Flush,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        if len > BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { kind, offset: u64::from_le_bytes(offset), len })
    }
}

/// Mounts a file over `mount` whose requests go to a server on loopback, which has them done on `image`, until it is unmounted.
pub(crate) fn serve(mount: &Path, image: &Path) -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(image)
        .with_context(|| format!("open {}", image.display()))?;
    let size = file.metadata()?.len();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Ok(file) = file.try_clone() else { return };
            thread::spawn(move || answer(stream, &file));
        }
    });
    let connections = (0..THREADS).map(|_| connect(address)).collect::<io::Result<Vec<_>>>()?;
    let fs = NullFile { size, time: SystemTime::now(), connections: Mutex::new(connections) };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("null".to_owned()), MountOption::NoAtime];
    config.n_threads = Some(THREADS);
    Session::new(fs, mount, &config)?.spawn()?.join()?;
    Ok(())
}

/// The client's side of a connection, with room for what is read through it.
struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

fn connect(address: SocketAddr) -> io::Result<Connection> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(Connection { stream, read: vec![0; BYTES_MAX] })
}

fn send(stream: &mut TcpStream, head: &[u8], data: &[u8]) -> io::Result<()> {
    let mut pieces = [io::IoSlice::new(head), io::IoSlice::new(data)];
    let mut pieces = &mut pieces[..];
    while !pieces.is_empty() {
        let sent = stream.write_vectored(pieces)?;
        io::IoSlice::advance_slices(&mut pieces, sent);
    }
    Ok(())
}

impl Connection {
    /// Has a request done, and returns what was read.
    fn ask(&mut self, asked: Asked, data: &[u8]) -> io::Result<&[u8]> {
        send(&mut self.stream, &asked.encode(), data)?;
        let mut head = [0; ANSWER_BYTES];
        self.stream.read_exact(&mut head)?;
        match i32::from_le_bytes(head) {
            0 if asked.kind == Kind::Read => {
                let read = &mut self.read[..asked.len];
                self.stream.read_exact(read)?;
                Ok(read)
            }
            0 => Ok(&[]),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The server's side of a connection. Returns when that ends.
fn answer(mut stream: TcpStream, file: &File) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut header = [0; HEADER_BYTES];
    // Requests lie at a boundary, as direct I/O wants it; the answer's head lies before them, in another piece.
    let mut data = Buffer::zeroed(BYTES_MAX / units::BLOCK_SIZE);
    loop {
        stream.read_exact(&mut header)?;
        let Asked { kind, offset, len } = Asked::decode(&header)?;
        let data = &mut data.as_mut_bytes()[..len];
        let done = match kind {
            Kind::Read => file.read_exact_at(data, offset),
            Kind::Write => {
                stream.read_exact(data)?;
                file.write_all_at(data, offset)
            }
            Kind::Flush => file.sync_data(),
        };
        let errno = done.err().map_or(0, |error| error.raw_os_error().unwrap_or(5));
        let head = errno.to_le_bytes();
        let read = if kind == Kind::Read && errno == 0 { &*data } else { &[] };
        send(&mut stream, &head, read)?;
    }
}

/// A file system that is one file, its root.
struct NullFile {
    size: u64,
    time: SystemTime,
    /// Those that have no request under way.
    connections: Mutex<Vec<Connection>>,
}

impl NullFile {
    fn attributes(&self) -> FileAttr {
        let (size, time) = (self.size, self.time);
        FileAttr {
            ino: INodeNo::ROOT,
            size,
            blocks: size / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// A connection that has no request under way: there are as many as threads that ask for one.
    fn connection(&self) -> Lent<'_> {
        let mut free = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        Lent { file: self, connection: Some(free.pop().expect("one for each thread")) }
    }
}

/// A connection until it is given back.
struct Lent<'a> {
    file: &'a NullFile,
    connection: Option<Connection>,
}

impl Lent<'_> {
    fn ask(&mut self, asked: Asked, data: &[u8]) -> io::Result<&[u8]> {
        self.connection.as_mut().expect("it is given back at the end").ask(asked, data)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut free = self.file.connections.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.connection.take());
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(5))
}

impl Filesystem for NullFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(BYTES_MAX as u32);
        let _ = config.set_max_background(128);
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = (len as usize).min(BYTES_MAX);
        match self.connection().ask(Asked { kind: Kind::Read, offset, len }, &[]) {
            Ok(read) => reply.data(read),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.connection().ask(Asked { kind: Kind::Write, offset, len: data.len() }, data) {
            Ok(_) => reply.written(u32::try_from(data.len()).expect("a request is shorter")),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.connection().ask(Asked { kind: Kind::Flush, offset: 0, len: 0 }, &[]) {
            Ok(_) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }
}

/// The file while it is mounted.
pub(super) struct Mounted {
    /// Ends when it is unmounted.
    _program: Program,
    pub(super) path: PathBuf,
    image: PathBuf,
}

impl Mounted {
    /// Mounts one in `out`.
    pub(super) fn start(out: &Path) -> Result<Self> {
        let out = out.canonicalize()?;
        let (path, image) = (out.join("null.vol"), out.join("null.img"));
        File::create(&path)?;
        File::create(&image)?.set_len(SIZE)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("null-file").arg("--mount").arg(&path).arg("--image").arg(&image);
        let program = Program::start(command, &out.join("null-file.log"))?;
        let mounted = Self { _program: program, path, image };
        let begin = Instant::now();
        while fs::metadata(&mounted.path)?.len() != SIZE {
            if begin.elapsed() > PATIENCE {
                bail!("{} is not mounted: see null-file.log", mounted.path.display());
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.path)) {
            eprintln!("bench: {} stays mounted: {error:#}", self.path.display());
            return;
        }
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_was_sent() {
        for kind in [Kind::Read, Kind::Write, Kind::Flush] {
            let asked = Asked { kind, offset: (1 << 40) + 4096, len: BYTES_MAX };
            assert_eq!(Asked::decode(&asked.encode()).unwrap(), asked);
        }
        assert!(Asked::decode(&[0xFF; HEADER_BYTES]).is_err());
    }

    /// A server that loses requests would be no limit.
    #[test]
    fn what_is_written_through_a_connection_is_read_through_it() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let file = image.reopen().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connection = connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let serving = thread::spawn(move || answer(accepted, &file));
        let connections = Mutex::new(vec![connection]);
        let null = NullFile { size: 1 << 20, time: SystemTime::now(), connections };
        let asked = |kind, offset| Asked { kind, offset, len: 4096 };
        null.connection().ask(asked(Kind::Write, 8192), &[7; 4096]).unwrap();
        null.connection().ask(Asked { kind: Kind::Flush, offset: 0, len: 0 }, &[]).unwrap();
        assert_eq!(null.connection().ask(asked(Kind::Read, 8192), &[]).unwrap(), [7; 4096]);
        let beyond = null.connection().ask(asked(Kind::Read, 1 << 20), &[]).unwrap_err();
        assert_eq!(beyond.raw_os_error(), Some(5));
        drop(null);
        assert!(serving.join().unwrap().is_err(), "the connection has ended");
    }
}
