//! Requests and answers as the kernel writes and reads them (linux/fuse.h, version 7.42; native byte order).

use std::time::{Duration, UNIX_EPOCH};

use fuser::FileAttr;
use uring::{FUSE_ANSWER_LEN, FUSE_HEADER_LEN};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::file::{Changes, TTL, flags_of_opening};

/// The bits of a mode that say that it is a file (inode(7)).
const REGULAR: u32 = 0o100_000;

mod opcode {
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const FALLOCATE: u32 = 43;
}

/// Bits that say which attributes a request sets.
mod sets {
    pub(super) const RIGHTS: u32 = 1 | 1 << 1 | 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const HANDLE: u32 = 1 << 6;
}

/// A request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Operation {
    GetAttributes,
    SetAttributes(Changes),
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    /// Its data is the beginning of the payload.
    Write {
        offset: u64,
        len: usize,
    },
    Statistics,
    /// Has nothing to do: a close, and the end of the last one.
    Nothing,
    Sync,
    Allocate {
        offset: u64,
        len: u64,
        mode: i32,
    },
    /// Something that this file system does not have. The kernel then does without.
    Unknown,
}

/// `struct fuse_in_header`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    user: u32,
    group: u32,
    process: u32,
    extensions_len: u16,
    padding: u16,
}

/// `struct fuse_setattr_in`, its beginning.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SetAttributes {
    valid: u32,
    padding: u32,
    handle: u64,
    size: u64,
}

/// `struct fuse_read_in` and `struct fuse_write_in`, their beginning.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Transfer {
    handle: u64,
    offset: u64,
    size: u32,
    flags: u32,
}

/// `struct fuse_fallocate_in`.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Allocate {
    handle: u64,
    offset: u64,
    len: u64,
    mode: i32,
    padding: u32,
}

/// `struct fuse_attr_out`.
#[derive(FromZeros, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Attributes {
    valid_seconds: u64,
    valid_nanos: u32,
    padding: u32,
    inode: u64,
    size: u64,
    sectors: u64,
    seconds: [u64; 3],
    nanos: [u32; 3],
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    device: u32,
    io_bytes: u32,
    flags: u32,
}

/// `struct fuse_open_out`.
#[derive(FromZeros, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Opened {
    handle: u64,
    flags: u32,
    backing: u32,
}

/// `struct fuse_statfs_out`: a file system of unknown size.
#[derive(FromZeros, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
struct Statistics {
    counts: [u64; 5],
    block_size: u32,
    name_len: u32,
    fragment_size: u32,
    padding: u32,
    spare: [u32; 6],
}

const _: () = assert!(size_of::<Header>() == 40 && size_of::<Attributes>() == 104);
const _: () = assert!(size_of::<Statistics>() == 80 && size_of::<Allocate>() == 32);

/// Returns the number of a request, which its answer repeats, and what it asks for.
pub(crate) fn parse(
    header: &[u8; FUSE_HEADER_LEN],
    arguments: &[u8; FUSE_HEADER_LEN],
    payload_len: usize,
) -> (u64, Operation) {
    let header: Header = of(header);
    let operation = match header.opcode {
        opcode::GETATTR => Operation::GetAttributes,
        opcode::SETATTR => {
            let asked: SetAttributes = of(arguments);
            Operation::SetAttributes(Changes {
                rights: asked.valid & sets::RIGHTS != 0,
                size: (asked.valid & sets::SIZE != 0).then_some(asked.size),
                is_open: asked.valid & sets::HANDLE != 0,
            })
        }
        opcode::OPEN => Operation::Open,
        opcode::READ => {
            let Transfer { offset, size, .. } = of(arguments);
            Operation::Read { offset, len: size as usize }
        }
        opcode::WRITE => {
            let Transfer { offset, size, .. } = of(arguments);
            match size as usize {
                len if len <= payload_len => Operation::Write { offset, len },
                _ => Operation::Unknown,
            }
        }
        opcode::STATFS => Operation::Statistics,
        opcode::RELEASE | opcode::FLUSH => Operation::Nothing,
        opcode::FSYNC => Operation::Sync,
        opcode::FALLOCATE => {
            let Allocate { offset, len, mode, .. } = of(arguments);
            Operation::Allocate { offset, len, mode }
        }
        _ => Operation::Unknown,
    };
    (header.unique, operation)
}

/// The beginning of `bytes`, which are longer.
fn of<T: FromBytes>(bytes: &[u8; FUSE_HEADER_LEN]) -> T {
    T::read_from_prefix(bytes).map(|(value, _)| value).expect("arguments are shorter than headers")
}

/// Returns the header of an answer to the request of this number. `error` is a positive error number, or 0.
pub(crate) fn answer(unique: u64, error: i32) -> [u8; FUSE_ANSWER_LEN] {
    let mut header = [0; FUSE_ANSWER_LEN];
    // The length, which comes first, stands elsewhere.
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Returns the attributes of a file.
pub(crate) fn attributes(file: &FileAttr) -> Vec<u8> {
    let times = [file.atime, file.mtime, file.ctime]
        .map(|time| time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO));
    let attributes = Attributes {
        valid_seconds: TTL.as_secs(),
        valid_nanos: TTL.subsec_nanos(),
        inode: file.ino.0,
        size: file.size,
        sectors: file.blocks,
        seconds: times.map(|time| time.as_secs()),
        nanos: times.map(|time| time.subsec_nanos()),
        mode: REGULAR | u32::from(file.perm),
        links: file.nlink,
        user: file.uid,
        group: file.gid,
        io_bytes: file.blksize,
        ..Attributes::new_zeroed()
    };
    attributes.as_bytes().to_vec()
}

/// Returns the answer to an open.
pub(crate) fn opened() -> Vec<u8> {
    let opened = Opened { flags: flags_of_opening().bits(), ..Opened::new_zeroed() };
    opened.as_bytes().to_vec()
}

/// Returns the answer to a write of so many bytes.
pub(crate) fn written(len: usize) -> Vec<u8> {
    let len = u32::try_from(len).expect("a request is shorter");
    [len, 0].as_bytes().to_vec()
}

/// Returns the statistics of the file system.
pub(crate) fn statistics() -> Vec<u8> {
    let statistics = Statistics { block_size: 512, name_len: 255, ..Statistics::new_zeroed() };
    statistics.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use fuser::{FileType, INodeNo};
    use proptest::prelude::*;

    use super::*;

    /// A request as the kernel writes it: fields one behind the other.
    fn request(opcode: u32, arguments: &[&[u8]]) -> ([u8; FUSE_HEADER_LEN], [u8; FUSE_HEADER_LEN]) {
        let (mut header, mut all) = ([0xee; FUSE_HEADER_LEN], [0xee; FUSE_HEADER_LEN]);
        header[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header[8..16].copy_from_slice(&77u64.to_ne_bytes());
        let arguments = arguments.concat();
        all[..arguments.len()].copy_from_slice(&arguments);
        (header, all)
    }

    fn parsed(opcode: u32, arguments: &[&[u8]], payload_len: usize) -> Operation {
        let (header, arguments) = request(opcode, arguments);
        let (unique, operation) = parse(&header, &arguments, payload_len);
        assert_eq!(unique, 77);
        operation
    }

    #[test]
    fn requests_are_read_where_the_kernel_puts_their_fields() {
        let (handle, offset) = (5u64.to_ne_bytes(), 4096u64.to_ne_bytes());
        let len = 3u32.to_ne_bytes();
        let transfer = [&handle[..], &offset, &len];
        assert_eq!(parsed(15, &transfer, 0), Operation::Read { offset: 4096, len: 3 });
        assert_eq!(parsed(16, &transfer, 3), Operation::Write { offset: 4096, len: 3 });
        assert_eq!(parsed(16, &transfer, 2), Operation::Unknown, "data is missing");
        let bytes = 9u64.to_ne_bytes();
        let allocate = parsed(43, &[&handle, &offset, &bytes, &len], 0);
        assert_eq!(allocate, Operation::Allocate { offset: 4096, len: 9, mode: 3 });
        for (opcode, operation) in [
            (3, Operation::GetAttributes),
            (14, Operation::Open),
            (17, Operation::Statistics),
            (18, Operation::Nothing),
            (25, Operation::Nothing),
            (20, Operation::Sync),
            (1, Operation::Unknown),
            (46, Operation::Unknown),
        ] {
            assert_eq!(parsed(opcode, &[], 0), operation, "{opcode}");
        }
    }

    #[test]
    fn changes_of_attributes_are_told_apart() {
        let changes = |valid: u32| {
            let fields = [&valid.to_ne_bytes()[..], &[0; 4], &[0; 8], &512u64.to_ne_bytes()];
            match parsed(4, &fields, 0) {
                Operation::SetAttributes(Changes { rights, size, is_open }) => {
                    (rights, size, is_open)
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(changes(0), (false, None, false));
        assert_eq!([changes(1).0, changes(2).0, changes(4).0], [true; 3], "mode, user, group");
        assert_eq!(changes(8), (false, Some(512), false));
        assert_eq!(changes(8 | 64), (false, Some(512), true));
        assert_eq!(changes(16 | 32 | 128 | 256), (false, None, false), "times");
    }

    #[test]
    fn answers_have_the_number_of_their_request() {
        let header = answer(0x0102, 5);
        assert_eq!(header[4..8], (-5i32).to_ne_bytes());
        assert_eq!(header[8..], 0x0102u64.to_ne_bytes());
        assert_eq!(written(4096), [&4096u32.to_ne_bytes()[..], &[0; 4]].concat());
        let time = UNIX_EPOCH + Duration::new(9, 7);
        let attributes = attributes(&FileAttr {
            ino: INodeNo::ROOT,
            size: 1 << 20,
            blocks: 2048,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: FileType::RegularFile,
            perm: 0o600,
            nlink: 1,
            uid: 1,
            gid: 2,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        });
        let at = |at: usize| u64::from_ne_bytes(attributes[at..at + 8].try_into().expect("8"));
        assert_eq!([at(16), at(24), at(32)], [1, 1 << 20, 2048], "inode, size, sectors");
        assert_eq!([at(40), at(48), at(56)], [9; 3]);
        assert_eq!(opened()[8..12], (1u32 | 64 | 32).to_ne_bytes());
        assert_eq!(statistics()[40..48], [512u32.to_ne_bytes(), 255u32.to_ne_bytes()].concat());
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_request(
            header in prop::array::uniform32(any::<u8>()),
            opcode in 0u32..60,
            arguments in prop::array::uniform32(any::<u8>()),
            payload_len in 0usize..200,
        ) {
            let (mut all, mut more) = ([0; FUSE_HEADER_LEN], [0; FUSE_HEADER_LEN]);
            all[..32].copy_from_slice(&header);
            all[4..8].copy_from_slice(&opcode.to_ne_bytes());
            more[..32].copy_from_slice(&arguments);
            if let (_, Operation::Write { len, .. }) = parse(&all, &more, payload_len) {
                prop_assert!(len <= payload_len);
            }
        }
    }
}
