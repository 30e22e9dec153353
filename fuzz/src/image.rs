//! A whole device in memory, and ways to damage it.
//!
//! Most damage would be stopped by the first checksum. So a mutation can also be *covered up*: the
//! block is sealed again, and so is every block that holds its checksum, up to the root.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn, ready};
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

use checksum::crc32c;
use io_traits::{Buffer, BufferSlice, Device, DeviceError, DeviceLimits};
use layout::{BITMAP_SLOTS, Superblock};
use memchr::memmem;
use units::{BLOCK_SIZE, Lba, LbaRange, MetadataSize, Pba, PbaRange};
use uuid::Uuid;
use volume::{
    Blocks, ExtentAllocator, FormatOptions, OpenError, Recovered, Shard, ShardOptions, Terms,
    VolumeSpec, active_shards, format_with_extents, read_superblock,
};

use crate::input::Input;

const DEVICE_BLOCKS: u64 = 16_384;
const EXTENT_BLOCKS: u32 = 1024;
/// Mutations of one input.
const MUTATIONS_MAX: u32 = 16;
/// Blocks that a cover-up may seal again.
const SEALED_MAX: usize = 32;
/// Shards that are opened.
pub(crate) const SHARDS_MAX: usize = 4;
/// Turns and requests after which something runs for ever.
const TURNS_MAX: u32 = 200_000;
const REQUESTS_MAX: u64 = 400_000;
/// Blocks of each volume that are read.
pub(crate) const READ_BLOCKS: u64 = 600;
/// Writes of each volume, of how many blocks, how far apart, and what is deallocated then.
const STEPS: u64 = 20;
const STEP_BLOCKS: u64 = 3;
const STRIDE: u64 = 29;
const UNMAPPED: Range<u64> = 90..2090;
/// Blocks of one byte that both volumes have, and where they end in the first one: with these, each map is more than a
/// leaf holds.
pub(crate) const FAR: Range<u64> = 2500..2620;
const FAR_END: u64 = 2900;
const FAR_BYTE: u8 = 0xDA;
/// Block and content of the last write.
const LAST: (u64, u8) = (95, 0xEE);

pub(crate) type Image = BTreeMap<u64, Vec<u8>>;

/// A device in memory whose requests are done at once.
#[derive(Clone)]
pub(crate) struct ImageDevice {
    blocks: Rc<RefCell<Image>>,
    requests: Rc<Cell<u64>>,
    writes: Rc<Cell<u64>>,
}

impl ImageDevice {
    pub(crate) fn new(image: Image) -> Self {
        let blocks = Rc::new(RefCell::new(image));
        Self { blocks, requests: Rc::default(), writes: Rc::default() }
    }

    /// Returns the content of the device.
    pub(crate) fn image(&self) -> Image {
        self.blocks.borrow().clone()
    }

    /// Requests that write, since this was last asked; as many as ever may be made from now on.
    pub(crate) fn take_writes(&self) -> u64 {
        self.requests.set(0);
        self.writes.take()
    }

    fn admit(&self, range: PbaRange) -> Result<(), DeviceError> {
        self.requests.set(self.requests.get() + 1);
        assert!(self.requests.get() < REQUESTS_MAX, "requests without end");
        match range.checked_end() {
            Some(end) if end.0 <= DEVICE_BLOCKS => Ok(()),
            _ => Err(DeviceError::OutOfRange { range }),
        }
    }
}

impl Device for ImageDevice {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { blocks: DEVICE_BLOCKS, volatile_cache: false, discards: true, pins: false }
    }

    fn read(
        &self,
        pba: Pba,
        mut buffer: Buffer,
    ) -> impl Future<Output = Result<Buffer, DeviceError>> + 'static {
        let admitted = self.admit(PbaRange::new(pba, buffer.len_blocks() as u64));
        ready(admitted.map(|()| {
            let blocks = self.blocks.borrow();
            for (at, block) in (pba.0..).zip(buffer.as_mut_bytes().chunks_mut(BLOCK_SIZE)) {
                match blocks.get(&at) {
                    Some(bytes) => block.copy_from_slice(bytes),
                    None => block.fill(0),
                }
            }
            buffer
        }))
    }

    fn write(
        &self,
        pba: Pba,
        data: BufferSlice,
    ) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        let range = PbaRange::new(pba, (data.len_bytes() / BLOCK_SIZE) as u64);
        self.writes.set(self.writes.get() + 1);
        ready(self.admit(range).map(|()| {
            let mut blocks = self.blocks.borrow_mut();
            for (at, block) in (pba.0..).zip(data.as_bytes().chunks(BLOCK_SIZE)) {
                blocks.insert(at, block.to_vec());
            }
        }))
    }

    fn flush(&self) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(Ok(()))
    }

    fn discard(&self, range: PbaRange) -> impl Future<Output = Result<(), DeviceError>> + 'static {
        ready(self.admit(range))
    }
}

/// Runs `main` with the loops of `shards`, in turn; `None` if what it waits for never comes.
pub(crate) fn run_with<T>(
    shards: &[Shard<ImageDevice>],
    main: impl Future<Output = T>,
) -> Option<T> {
    let mut loops: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for shard in shards {
        let (committing, checkpointing) = (shard.clone(), shard.clone());
        loops.push(Box::pin(async move { committing.run_committer().await }));
        loops.push(Box::pin(async move { checkpointing.run_checkpointer().await }));
    }
    let mut over = vec![false; loops.len()];
    let mut main = pin!(main);
    let mut context = Context::from_waker(Waker::noop());
    for turn in 0..TURNS_MAX {
        if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
            return Some(output);
        }
        for (over, task) in over.iter_mut().zip(&mut loops) {
            *over = *over || task.as_mut().poll(&mut context).is_ready();
        }
        if turn % 64 == 0 {
            shards.iter().for_each(Shard::settle);
        }
    }
    None
}

/// Lets the loops run for some turns.
async fn pause() {
    let mut left = 16;
    poll_fn(|_| {
        left -= 1;
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A device with two volumes, the second with metadata of blocks; data, maps of several leaves, pending unmaps, a checkpoint
/// and a journal behind it.
pub(crate) fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let device = ImageDevice::new(Image::new());
        let options = FormatOptions { uuid: Uuid::from_u128(9) };
        let format = format_with_extents(&device, &options, EXTENT_BLOCKS);
        run_with(&[], format).expect("ends").expect("a sound device");
        let opened = run_with(&[], open(&device, None));
        let shards = opened.expect("ends").expect("a sound device");
        let made = run_with(&shards, async {
            for (number, name) in [(1, "one"), (2, "two")] {
                let (uuid, name) = (Uuid::from_u128(number), name.into());
                let spec = VolumeSpec { uuid, name, blocks: 5000 };
                let metadata = [MetadataSize::None, MetadataSize::Bytes16][number as usize - 1];
                let terms = Terms { metadata, ..Terms::default() };
                let volume = shards[0].create_volume_under(spec, terms).await.expect("room");
                for step in 0..STEPS {
                    let data = [step as u8 + 1; STEP_BLOCKS as usize * BLOCK_SIZE];
                    let data = blocks(&data, metadata);
                    volume.write(Lba(step * STRIDE), data, None).await.expect("room");
                }
                let end = if number == 1 { FAR_END } else { FAR.end };
                let far = vec![FAR_BYTE; (end - FAR.start) as usize * BLOCK_SIZE];
                volume.write(Lba(FAR.start), blocks(&far, metadata), None).await.expect("room");
                let unmapped = UNMAPPED.end - UNMAPPED.start;
                let unmapped = LbaRange::new(Lba(UNMAPPED.start), unmapped);
                volume.unmap(unmapped).await.expect("no faults");
                if number == 1 {
                    shards[0].checkpoint().await.expect("no faults");
                }
                // Of all but the last write the journal says that it is on the media.
                pause().await;
                shards[0].settle();
                pause().await;
                let data = blocks(&[LAST.1; BLOCK_SIZE], metadata);
                volume.write(Lba(LAST.0), data, None).await.expect("room");
            }
        });
        made.expect("ends");
        device.blocks.take()
    })
}

/// Returns the successive values of each byte of a block of one of the volumes.
pub(crate) fn history(lba: u64) -> Vec<u8> {
    let (step, block) = (lba / STRIDE, lba % STRIDE);
    let mut held = vec![0];
    held.extend((step < STEPS && block < STEP_BLOCKS).then_some(step as u8 + 1));
    held.extend(UNMAPPED.contains(&lba).then_some(0));
    held.extend(FAR.contains(&lba).then_some(FAR_BYTE));
    held.extend((lba == LAST.0).then_some(LAST.1));
    held
}

/// Returns true if a record of the journal, or a block that nothing but the last one leads to, lies at `place`:
/// damage there may look like a write that a power cut left unfinished.
pub(crate) fn may_look_torn(place: u64) -> bool {
    let superblock = Superblock::decode(&image()[&0]).expect("whole");
    let journal = superblock.extent(0).start.0 + u64::from(BITMAP_SLOTS);
    let is_last = image()[&place].iter().all(|byte| *byte == LAST.1);
    is_last || (journal..journal + u64::from(superblock.journal_blocks)).contains(&place)
}

/// Blocks with these bytes, and with metadata.
pub(crate) fn blocks(bytes: &[u8], metadata: MetadataSize) -> Blocks {
    let metadata = vec![0x3C; bytes.len() / BLOCK_SIZE * metadata.bytes()];
    Blocks { data: Buffer::from_bytes(bytes).into_slice(), metadata: metadata.into() }
}

/// Opens the shards; `map_memory` as in [`ShardOptions`].
pub(crate) async fn open(
    device: &ImageDevice,
    map_memory: Option<u64>,
) -> Result<Vec<Shard<ImageDevice>>, OpenError> {
    let superblock = read_superblock(device).await?;
    let mut active = active_shards(device, &superblock).await?;
    if active.is_empty() {
        active.push(0);
    }
    active.truncate(SHARDS_MAX);
    let extents = ExtentAllocator::new(&superblock);
    let mut recovered = Vec::new();
    for index in active {
        let options = ShardOptions { map_memory, ..ShardOptions::default() };
        let extents = extents.clone();
        recovered.push(Shard::recover(device.clone(), superblock, index, extents, options).await?);
    }
    Recovered::start_all(recovered).await
}

/// Seals a block again that was sealed, by a checksum of all that lies behind it.
fn seal(block: &mut [u8], was: &[u8]) {
    for at in [4, 8] {
        let crc = |bytes: &[u8]| crc32c(&bytes[at + 4..]).to_le_bytes();
        if was[at..at + 4] == crc(was) {
            let crc = crc(block);
            block[at..at + 4].copy_from_slice(&crc);
        }
    }
}

/// Makes every block that holds the checksum of a changed one hold the new one, and so on.
fn cover_up(image: &mut Image, first: u64, was: Vec<u8>) {
    let mut changed = vec![(first, was)];
    let mut sealed = 0;
    while let Some((place, was)) = changed.pop() {
        sealed += 1;
        if sealed > SEALED_MAX {
            return;
        }
        let block = image.get_mut(&place).expect("it was changed");
        seal(block, &was);
        let (old, new) = (crc32c(&was).to_le_bytes(), crc32c(block).to_le_bytes());
        if old == new {
            continue;
        }
        // All that holds checksums of others begins with a signature.
        let holds = |(other, bytes): &(&u64, &mut Vec<u8>)| **other != place && bytes[0] == b'F';
        for (other, bytes) in image.iter_mut().filter(holds) {
            let places: Vec<usize> = memmem::find_iter(bytes, &old).collect();
            if places.is_empty() {
                continue;
            }
            let before = bytes.clone();
            for at in places {
                bytes[at..at + old.len()].copy_from_slice(&new);
            }
            changed.push((*other, before));
        }
    }
}

/// The device, damaged.
pub(crate) struct Damaged {
    pub(crate) image: Image,
    /// The damaged blocks.
    pub(crate) places: Vec<u64>,
    /// True if checksums were recomputed over some of the damage, so that they do not detect it.
    pub(crate) is_covered_up: bool,
}

/// Damages the device as the input says, which is a list of mutations.
pub(crate) fn damaged(input: &mut Input<'_>) -> Damaged {
    let mut damaged = Damaged { image: image().clone(), places: Vec::new(), is_covered_up: false };
    for _ in 0..MUTATIONS_MAX {
        if input.is_empty() {
            break;
        }
        mutate(&mut damaged, input);
    }
    damaged
}

fn mutate(damaged: &mut Damaged, input: &mut Input<'_>) {
    let image = &mut damaged.image;
    let places: Vec<u64> = image.keys().copied().collect();
    let place = places[usize::from(input.u16()) % places.len()];
    let other = places[usize::from(input.u8()) % places.len()];
    let (mode, at, value) = (input.u8(), usize::from(input.u16()) % BLOCK_SIZE, input.u32());
    let was = image[&place].clone();
    let copied = image[&other].clone();
    let block = image.get_mut(&place).expect("one of its keys");
    // Most of a block is unused: look near its beginning more often.
    let at = if mode & 0x40 == 0 { at % 160 } else { at };
    match mode & 7 {
        0 => block[at] ^= 1 << (value % 8),
        1 => block[at] = value as u8,
        2 => block.fill(0),
        3 => *block = copied,
        4 => {
            let end = (at + 8).min(BLOCK_SIZE);
            let wide = u64::from(value) << (value % 32);
            block[at..end].copy_from_slice(&wide.to_le_bytes()[..end - at]);
        }
        5 => block[at] = block[at].wrapping_add(1),
        6 => {
            let end = (at + 8).min(BLOCK_SIZE);
            block[at..end].fill(0xFF);
        }
        _ => {
            let end = (at + 4).min(BLOCK_SIZE);
            block[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
    }
    if mode & 0x80 == 0 {
        cover_up(image, place, was);
        damaged.is_covered_up = true;
    }
    damaged.places.push(place);
}

/// Nothing damaged; each kind of damage to each block that differs from the one before.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mutation =
        |place: u16, mode: u8| [&place.to_le_bytes()[..], &[3, mode, 40, 0, 1, 2, 3, 4]].concat();
    let mut seeds = vec![Vec::new()];
    let (mut before, zeroes) = (None, vec![0; BLOCK_SIZE]);
    let written = (0..)
        .zip(image().values())
        .filter(|(_, block)| before.replace(*block) != Some(*block) && **block != zeroes);
    seeds.extend(written.map(|(place, _)| mutation(place, (place % 8) as u8)));
    seeds
}
