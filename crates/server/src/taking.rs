//! A device on its way to the cores: read back by all of them, then made durable as it was read, then written, then served.
//!
//! - TAKING-1: nothing of a device is written before every core has read its shards of it back, and the task that
//!   attaches it has examined its contents.
//! - TAKING-2: no core takes an extent before every core has made durable what it read: else it may be one of a root that comes
//!   back.
//! - TAKING-3: none of it is served before every core could write it. If one cannot, or the task that attaches it
//!   ends, all let go of it, and it can be attached again. But a file system below that is full prevents no
//!   reads: the shards are then served as ones that have failed, which come back by themselves when there is
//!   room.

use data_core::{CoreMessage, Part, TakeUp};
use device::layer::Fence;
use local_devices::not_opened::{failing, is_failing, of_later_release};
use tokio::sync::oneshot;
use typed_index_collections::TiSlice;
use units::{CoreIndex, DeviceIndex};
use user_messages::{Failure, shell};
use uuid::Uuid;
use volume::{ExtentAllocator, OpenError};

use super::core_ended;
use super::cores::CoreLink;
use super::device_set::OpenDevice;

/// A device that is being taken up. The cores let go of it when this is dropped (TAKING-3).
pub(super) struct Taking {
    recovered: Vec<oneshot::Receiver<Result<Vec<Uuid>, OpenError>>>,
    confirm: Vec<oneshot::Sender<()>>,
    confirmed: Vec<oneshot::Receiver<Result<(), OpenError>>>,
    start: Vec<oneshot::Sender<()>>,
    started: Vec<oneshot::Receiver<Result<(), OpenError>>>,
    serve: Vec<oneshot::Sender<()>>,
    serving: Vec<oneshot::Receiver<()>>,
}

impl Taking {
    /// Gives each core its part of device `number`, to be read back.
    pub(super) fn begin(
        links: &TiSlice<CoreIndex, CoreLink>,
        number: DeviceIndex,
        opened: &OpenDevice,
        fence: &Fence,
    ) -> Result<Self, Failure> {
        let mut taking = Self {
            recovered: Vec::new(),
            confirm: Vec::new(),
            confirmed: Vec::new(),
            start: Vec::new(),
            started: Vec::new(),
            serve: Vec::new(),
            serving: Vec::new(),
        };
        let extents = ExtentAllocator::new(&opened.superblock);
        for (core, link) in links.iter_enumerated() {
            let part = Part {
                source: opened.source.clone(),
                superblock: opened.superblock,
                extents: extents.clone(),
                shards: shards_of(core, links.len(), &opened.active),
                volatile_cache: opened.volatile_cache,
                fence: fence.clone(),
            };
            let asked = TakeUp {
                device: number,
                part,
                recovered: way_back(&mut taking.recovered),
                confirm: way_there(&mut taking.confirm),
                confirmed: way_back(&mut taking.confirmed),
                start: way_there(&mut taking.start),
                started: way_back(&mut taking.started),
                serve: way_there(&mut taking.serve),
                serving: way_back(&mut taking.serving),
            };
            let sent = link.mailbox.send(CoreMessage::TakeUp(Box::new(asked)));
            sent.map_err(|_| core_ended())?;
        }
        Ok(taking)
    }

    /// The volumes on the device, called `name`, when all of it is read back.
    pub(super) async fn volumes(&mut self, name: &str) -> Result<Vec<Uuid>, Failure> {
        let all = all(&mut self.recovered, name).await?;
        Ok(all.into_iter().flatten().collect())
    }

    /// Has the shards written, so that they can be served.
    pub(super) async fn start(&mut self, name: &str) -> Result<(), Failure> {
        tell_all(&mut self.confirm);
        all(&mut self.confirmed, name).await?;
        tell_all(&mut self.start);
        all(&mut self.started, name).await.map(drop)
    }

    /// Has the volumes served.
    pub(super) async fn serve(self) -> Result<(), Failure> {
        for serve in self.serve {
            let _ = serve.send(());
        }
        for serving in self.serving {
            serving.await.map_err(|_| core_ended())?;
        }
        Ok(())
    }
}

fn way_back<T>(receivers: &mut Vec<oneshot::Receiver<T>>) -> oneshot::Sender<T> {
    let (sender, receiver) = oneshot::channel();
    receivers.push(receiver);
    sender
}

fn way_there<T>(senders: &mut Vec<oneshot::Sender<T>>) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    senders.push(sender);
    receiver
}

/// Lets every core go on.
fn tell_all(ways: &mut Vec<oneshot::Sender<()>>) {
    for way in ways.drain(..) {
        // One that has ended is found when it is to report.
        let _ = way.send(());
    }
}

/// Waits for every core to report of the device called `name`.
async fn all<T>(
    reports: &mut Vec<oneshot::Receiver<Result<T, OpenError>>>,
    name: &str,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    for report in reports.drain(..) {
        let report = report.await.map_err(|_| core_ended())?;
        all.push(report.map_err(|error| not_opened(name, &error))?);
    }
    Ok(all)
}

/// The shards of a device that belong to core `core` of `count`: its own, and of those that were ever
/// used (`active`) what has no core of its own.
fn shards_of(core: CoreIndex, count: usize, active: &[u16]) -> Vec<u16> {
    let own = u16::try_from(core.0).expect("no more cores than shards");
    let others = active.iter().copied();
    let others = others.filter(|shard| *shard != own && usize::from(*shard) % count == core.0);
    std::iter::once(own).chain(others).collect()
}

fn not_opened(device: &str, error: &OpenError) -> Failure {
    match error {
        OpenError::NoExtent => Failure::runtime(
            format!("{device} is too small for this many cores: {error}"),
            "name fewer cores with --cores, or a larger device",
        ),
        OpenError::Later { .. } => of_later_release(format!("{device} is not served: {error}")),
        _ if is_failing(error) => failing(format!("{device} cannot be opened: {error}"), error),
        _ => Failure::runtime(
            format!("{device} cannot be opened: {error}"),
            format!(
                "see what `farflash fsck --device {}` finds of it; restore it from a copy if that is nothing that it mends",
                shell::word(device)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_one_core() {
        assert_eq!(shards_of(CoreIndex(0), 2, &[0, 1, 2, 3, 4]), [0, 2, 4]);
        assert_eq!(shards_of(CoreIndex(1), 2, &[0, 1, 2, 3, 4]), [1, 3]);
        assert_eq!(shards_of(CoreIndex(1), 2, &[]), [1], "a new one");
        assert_eq!(shards_of(CoreIndex(0), 1, &[3]), [0, 3]);
    }

    /// Other devices are served beside it, and no message says to restore, mend or format what is whole.
    #[test]
    fn a_device_of_a_later_release_is_told_from_a_damaged_one() {
        let later = OpenError::Later { shard: 3, pba: units::Pba(77), what: "flags" };
        let failure = not_opened("file:/srv/flash", &later);
        let said = failure.in_one_line();
        assert!(failure.spares_others() && !failure.is_absence(), "{said}");
        assert!(said.starts_with("file:/srv/flash is not served: shard 3: the volume"), "{said}");
        assert!(
            said.contains("the release of farflash that made the volume, or a later"),
            "{said}"
        );
        assert!(["fsck", "restore", "format"].iter().all(|word| !said.contains(word)), "{said}");
        assert!(!not_opened("file:/srv/flash", &OpenError::Root(0)).spares_others());
    }

    /// A damaged device is looked at and restored, and never destroyed on the word of a message.
    #[test]
    fn a_damaged_device_is_not_to_be_formatted() {
        let errors = [OpenError::Root(0), OpenError::Journal { shard: 0, sequence: 7 }];
        for said in errors.map(|error| not_opened("file:/srv/my flash", &error).to_string()) {
            assert!(said.contains("`farflash fsck --device 'file:/srv/my flash'`"), "{said}");
            assert!(!said.contains("--force") && !said.contains("farflash format"), "{said}");
        }
    }
}
