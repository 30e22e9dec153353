//! The data cores, as the control side sees them.

use std::net::SocketAddr;
use std::ops::Deref;

use control::{Portal, ServiceError};
use data_core::{Answer, CoreMessage, Place, VOLUMES_AT_ONCE};
use dataplane::{VolumeFlow, VolumeStatus};
use reactor::Sender;
use tokio::sync::oneshot;
use typed_index_collections::{TiSlice, TiVec};
use units::CoreIndex;
use uuid::Uuid;

use super::nbd_tls::Certificates;

/// A data core, as the control side sees it.
#[derive(Clone)]
pub(crate) struct CoreLink {
    /// The CPU.
    pub(crate) cpu: u32,
    /// The address that it listens on.
    pub(crate) local: SocketAddr,
    /// The address to which hosts are told to connect.
    pub(crate) portal: SocketAddr,
    /// The places where it listens for other protocols than NVMe.
    pub(crate) places: Vec<Place>,
    /// Certificates of NBD, the same for all cores.
    pub(super) nbd_tls: Option<Certificates>,
    pub(crate) mailbox: Sender<CoreMessage>,
}

/// The cores, by number. Never empty.
pub(super) struct Cores(TiVec<CoreIndex, CoreLink>);

impl Cores {
    pub(super) fn new(links: TiVec<CoreIndex, CoreLink>) -> Self {
        assert!(!links.is_empty(), "a server has a core");
        Self(links)
    }

    /// Tells each core the same. One that has ended serves nothing, and need not be told.
    pub(super) fn tell(&self, message: impl Fn() -> CoreMessage) {
        for core in &self.0 {
            let _ = core.mailbox.send(message());
        }
    }
}

impl Deref for Cores {
    type Target = TiSlice<CoreIndex, CoreLink>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl CoreLink {
    /// Asks the core something. An answer that does not come says that the core has ended.
    pub(crate) async fn ask<T>(
        &self,
        message: impl FnOnce(Answer<T>) -> CoreMessage,
    ) -> Result<T, ServiceError> {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(message(answer)).map_err(|_| ServiceError::Unavailable)?;
        answered.await.map_err(|_| ServiceError::Unavailable)
    }

    /// All volumes of the core.
    pub(super) async fn volumes(&self) -> Result<Vec<VolumeStatus>, ServiceError> {
        self.in_parts(|first, answer| CoreMessage::ListVolumes { first, answer }, |v| v.uuid).await
    }

    /// Returns the state and the flows of the core's volumes.
    pub(super) async fn flows(&self) -> Result<Vec<(VolumeStatus, VolumeFlow)>, ServiceError> {
        self.in_parts(|first, answer| CoreMessage::Flows { first, answer }, |(v, _)| v.uuid).await
    }

    /// Asks for a few volumes at a time, until none are left.
    async fn in_parts<T>(
        &self,
        message: impl Fn(Uuid, Answer<Vec<T>>) -> CoreMessage,
        id: impl Fn(&T) -> Uuid,
    ) -> Result<Vec<T>, ServiceError> {
        let (mut all, mut first) = (Vec::new(), Uuid::nil());
        loop {
            let part = self.ask(|answer| message(first, answer)).await?;
            let next = part.last().and_then(|last| id(last).as_u128().checked_add(1));
            let is_last = part.len() < VOLUMES_AT_ONCE;
            all.extend(part);
            match next {
                Some(next) if !is_last => first = Uuid::from_u128(next),
                _ => return Ok(all),
            }
        }
    }

    /// Lets hosts in.
    pub(super) fn admit(&self) -> Result<(), ServiceError> {
        self.mailbox.send(CoreMessage::Admit).map_err(|_| ServiceError::Unavailable)
    }

    pub(super) fn portal(&self) -> Portal {
        Portal { address: self.portal, core: self.cpu }
    }
}
