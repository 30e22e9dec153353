//! Follows what a controller announces: above all that a volume was resized.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::World;
use nvme_initiator::NamespaceShape;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::identify::{Cns, IdentifyNamespace};
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::sqe::NSID_ALL;
use units::Duration;

use crate::client::Inner;
use crate::{Error, admin};

/// Bytes of a log page that are read to clear its event: all of those that matter here.
const LOG_LEN: u64 = 4096;
/// Pause behind an event. The controller keeps what happens meanwhile, and one that always has something to tell takes no
/// more of the host's time than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the events of the association whose admin link is number `epoch`.
pub(crate) async fn follow<W: World>(inner: Rc<Inner<W>>, epoch: u64) {
    // What happened between two associations was announced to nobody.
    inner.refresh_namespaces().await;
    while inner.admin.lost(epoch).is_none() {
        let outcome = inner.admin.run(&inner.world, admin::async_event_request()).await;
        let Ok(completion) = outcome else { return };
        let event = AsyncEvent::decode(completion.cqe.dw0());
        // Reading the log clears the event, so that the next one can be announced.
        let len = if event.lid == Lid::HEALTH { 512 } else { LOG_LEN };
        let page = GetLogPage::new(event.lid, NSID_ALL, 0, len);
        let _ = inner.admin.run(&inner.world, admin::get_log_page(&page)).await;
        if event == AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED {
            inner.refresh_namespaces().await;
        }
        inner.world.sleep_until(inner.world.now() + PAUSE).await;
    }
}

impl<W: World> Inner<W> {
    /// Asks again for the shape of every namespace in use.
    async fn refresh_namespaces(&self) {
        let in_use: Vec<u32> = self.namespaces.borrow().keys().copied().collect();
        for nsid in in_use {
            if let Ok(shape) = self.identify_namespace(nsid).await {
                // Volumes of another format stay as they are: the target refuses what does not fit.
                let _ = self.take_in(shape);
            }
        }
    }

    /// Takes over how large a namespace is now. Its format is for life: requests under way count on it.
    pub(crate) fn take_in(&self, shape: NamespaceShape) -> Result<Rc<Cell<NamespaceShape>>, Error> {
        let mut namespaces = self.namespaces.borrow_mut();
        // Those whose volumes are gone: a target can name a new one each time.
        namespaces.retain(|_, cell| Rc::strong_count(cell) > 1);
        let cell = namespaces.entry(shape.nsid).or_insert_with(|| Rc::new(Cell::new(shape)));
        let format = |shape: NamespaceShape| (shape.block_bytes, shape.metadata_bytes);
        if format(cell.get()) != format(shape) {
            return Err(Error::FormatChanged { nsid: shape.nsid });
        }
        if cell.replace(shape) != shape {
            self.resized.notify_all();
        }
        Ok(cell.clone())
    }

    pub(crate) async fn identify_namespace(&self, nsid: u32) -> Result<NamespaceShape, Error> {
        let limits = self.limits.get().ok_or(Error::Closed)?;
        let command = admin::identify(Cns::NAMESPACE, nsid);
        let buffer = self.admin.run(&self.world, command).await?.buffer;
        let identify: &IdentifyNamespace = admin::structure(buffer.as_ref());
        if identify.nsze.get() == 0 && identify.ncap.get() == 0 {
            return Err(Error::NoNamespace { nsid });
        }
        Ok(NamespaceShape::new(nsid, identify, &limits)?)
    }

    /// Namespace Utilization of namespace `nsid`.
    pub(crate) async fn namespace_utilization(&self, nsid: u32) -> Result<u64, Error> {
        let command = admin::identify(Cns::NAMESPACE, nsid);
        let buffer = self.admin.run(&self.world, command).await?.buffer;
        let identify: &IdentifyNamespace = admin::structure(buffer.as_ref());
        Ok(identify.nuse.get())
    }
}
