//! A target of a volume that lies plays against a whole host, which opens the volume, and reads, writes and swaps.
//!
//! Promises: nothing panics; a caller that opens the volume or sends it a request gets an answer or an error within
//! a bounded time, whatever the target says, and says again on each new connection; the properties that it reports
//! do not overflow computations; data that the host hands out is what the target sent for that very request, all of
//! it; data that the host sends is that of the command it names; no connection stays open.

mod target;
mod witness;

use std::cell::Cell;
use std::rc::Rc;

use client::{Backoff, Client, Error, Options, Reconnect, Volume};
use io_traits::{Buffer, BufferSlice, Clock, Listener, Network, Spawn};
use nvme_wire::Nqn;
use sim::SimWorld;
use units::{BLOCK_SIZE, Duration, Lba, LbaRange};

use self::target::{Target, written};
use self::witness::Witness;
use crate::liar::{Liar, answer, wrong_answers};
use crate::portal;
use crate::session;

const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// A request is sent six times at most, each time until it is late, and each new connection takes as long as it may: until
/// its controller is ready, the last one has ended, and all else is there. All that the host does is bounded by a few of that.
const LIMIT: Duration = Duration::from_secs(400);
/// Commands until the host has the volume, and those that use it.
const COMMANDS: usize = 28;
/// Reads that are under way together: each its first block and its number of blocks.
const READS: [(u64, u32); 4] = [(7, 1), (8, 3), (8, 1), (20, 2)];
/// Blocks of a write that does not fit into its capsule, and of one that does.
const LONG_WRITE: usize = 6;
const SHORT_WRITE: usize = 1;

/// The input is how the commands are answered that come on a connection, on each the same.
pub fn run(bytes: &[u8]) {
    session::play(|world| scenario(world, bytes.to_vec()));
}

async fn scenario(world: SimWorld, bytes: Vec<u8>) {
    let is_honest = bytes.iter().all(|step| *step == answer::RIGHT);
    let listener = world.listen(portal()).expect("a free address");
    let (serving, is_enabled) = (world.clone(), Rc::new(Cell::new(false)));
    let (open, witness) = (Rc::new(Cell::new(0_u32)), Rc::new(Witness::default()));
    let (is_open, sent) = (open.clone(), witness.clone());
    world.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let target = Target::new(is_enabled.clone(), sent.clone());
            let liar = Liar::new(stream, &bytes, target);
            is_open.set(is_open.get() + 1);
            let is_open = is_open.clone();
            serving.spawn(async move {
                liar.serve().await;
                is_open.set(is_open.get() - 1);
            });
        }
    });
    let begin = world.now();
    let done = use_volume(&world, witness).await;
    assert!(world.now().since(begin) <= LIMIT, "it took {:?}", world.now().since(begin));
    if is_honest {
        done.expect("an honest target serves");
    }
    world.sleep_until(world.now() + Duration::from_secs(1)).await;
    assert_eq!(open.get(), 0, "connections stayed");
}

async fn use_volume(world: &SimWorld, witness: Rc<Witness>) -> Result<(), Error> {
    let backoff = Backoff { give_up_after: GIVE_UP_AFTER, ..Backoff::default() };
    let options = Options {
        depth: 4,
        header_digest: false,
        data_digest: false,
        command_timeout: COMMAND_TIMEOUT,
        connect_timeout: CONNECT_TIMEOUT,
        reconnect: Reconnect::Backoff(backoff),
        ..Options::for_host([9; 16])
    };
    let nqn = Nqn::from_uuid(&[1; 16]);
    let client = Client::connect(world.clone(), portal(), &nqn, options).await;
    // Why it does not connect is not of interest here.
    let Ok(client) = client else { return Err(Error::Closed) };
    let outcome = match client.volume().await {
        Ok(volume) => {
            let reads = read_together(world, &volume, witness).await;
            let others = use_one_by_one(&volume).await;
            reads.and(others)
        }
        Err(error) => Err(error),
    };
    client.close().await;
    outcome
}

/// Reads at the same time, one of which is given up at once.
async fn read_together(
    world: &SimWorld,
    volume: &Volume<SimWorld>,
    witness: Rc<Witness>,
) -> Result<(), Error> {
    let (done, outcome) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(Ok(()))));
    let given_up = volume.clone();
    world.spawn(async move {
        let mut read = Box::pin(given_up.read(Lba(30), 1));
        std::future::poll_fn(|context| {
            let _ = read.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
    });
    for (lba, blocks) in READS {
        let (volume, witness) = (volume.clone(), witness.clone());
        let (done, outcome) = (done.clone(), outcome.clone());
        world.spawn(async move {
            match volume.read_ex(Lba(lba), blocks).await {
                Ok(read) => {
                    let len = volume.block_size() as usize * blocks as usize;
                    witness.must_have_sent(
                        (lba, blocks),
                        &read.data.as_bytes()[..len],
                        &read.metadata,
                    );
                }
                Err(error) => outcome.set(Err(error)),
            }
            done.set(done.get() + 1);
        });
    }
    while done.get() < READS.len() {
        world.sleep_until(world.now() + Duration::from_millis(1)).await;
    }
    outcome.get()
}

/// Every other request, one after the other.
async fn use_one_by_one(volume: &Volume<SimWorld>) -> Result<(), Error> {
    // Whatever the target says, this can be reckoned with.
    let _ = volume.capacity() * u64::from(volume.block_size());
    assert!(volume.max_transfer_blocks() > 0, "not even one block");
    let block = volume.block_size() as usize;
    let data = |lba, blocks| blocks_of(lba, blocks * block);
    let all = [
        volume.write(Lba(40), data(40, SHORT_WRITE)).await,
        volume.write(Lba(50), data(50, LONG_WRITE)).await,
        volume.compare(Lba(60), data(60, SHORT_WRITE)).await.map(drop),
        volume.compare_and_swap(Lba(70), &data(70, 1), &data(70, 1)).await.map(drop),
        volume.deallocate(&[LbaRange::new(Lba(80), 4)]).await,
        volume.write_zeroes(LbaRange::new(Lba(90), 4)).await,
        volume.verify(LbaRange::new(Lba(90), 4)).await,
        volume.flush().await,
        volume.used_blocks().await.map(drop),
        volume.failure_domain().await.map(drop),
        volume.client().smart_health().await.map(drop),
    ];
    all.into_iter().collect()
}

/// Data of which each byte says where it is written to.
fn blocks_of(lba: u64, len_bytes: usize) -> BufferSlice {
    let mut buffer = Buffer::new(len_bytes.div_ceil(BLOCK_SIZE));
    buffer.as_mut_bytes().fill(written(lba));
    buffer.into_slice().slice(0..len_bytes)
}

/// An honest target; each wrong answer to each command; and each byte of what Identify says of a namespace, and of the
/// limits of a controller, as large as it can be.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut all = vec![vec![answer::RIGHT; COMMANDS]];
    all.extend(wrong_answers(&[], COMMANDS));
    for at in (4096..4096 + 140).chain([77, 256, 257, 258, 259]) {
        let at = u16::to_le_bytes(at);
        // The second command of all is the first that may be answered by a page.
        let change = [answer::CHANGE, at[0], at[1], 0xFF];
        all.push([&[answer::RIGHT; 3][..], &change].concat());
    }
    all
}
