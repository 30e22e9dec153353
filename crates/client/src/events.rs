//! Follows what a controller announces: above all that a volume was resized.

use std::rc::Rc;

use io_traits::World;
use nvme_wire::async_event::AsyncEvent;
use nvme_wire::log::{GetLogPage, Lid};
use nvme_wire::sqe::NSID_ALL;
use units::Duration;

use crate::admin;
use crate::client::Inner;

/// Bytes of a log page that are read to clear its event: all of those that matter here.
const LOG_LEN: u64 = 4096;
/// Pause behind an event. The controller keeps what happens meanwhile, and one that always has something to tell takes no
/// more of the host's time than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Follows the events of the association whose admin link is number `epoch`.
pub(crate) async fn follow<W: World>(inner: Rc<Inner<W>>, epoch: u64) {
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
