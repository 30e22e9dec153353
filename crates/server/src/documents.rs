//! Volumes as the API shows them.

use control::{
    Caller, ChapSource, ServiceError, Volume, VolumeKey, VolumeState, connect_line, nqn,
};
use data_core::{CoreMessage, VOLUMES_AT_ONCE};
use dataplane::VolumeStatus;
use units::{BLOCK_SIZE, CoreIndex};
use uuid::Uuid;

use super::access;
use super::directory::Place;
use super::interfaces;
use super::sharing::slo_document;
use super::state::State;

impl State {
    /// Returns the place of the volume, if `caller` may know it.
    pub(super) fn place(&self, caller: &Caller, key: &VolumeKey) -> Result<Place, ServiceError> {
        self.directory(|directory| directory.find(caller, key)).ok_or_else(|| self.not_here(key))
    }

    pub(super) async fn list(&self, caller: &Caller) -> Result<Vec<Volume>, ServiceError> {
        let mut volumes = Vec::new();
        let own = self.directory(|directory| directory.places_of(caller));
        for (core, link) in self.cores.iter_enumerated() {
            let here: Vec<Uuid> = own.iter().filter(|p| p.core == core).map(|p| p.id).collect();
            for ids in here.chunks(VOLUMES_AT_ONCE) {
                let ids = ids.to_vec();
                let states = link.ask(|answer| CoreMessage::ShowVolumes { ids, answer }).await?;
                volumes.extend(states.iter().map(|state| self.document(core, state)));
            }
        }
        volumes.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        Ok(volumes)
    }

    pub(super) async fn show(
        &self,
        caller: &Caller,
        key: VolumeKey,
    ) -> Result<Volume, ServiceError> {
        let Place { id, core, .. } = self.place(caller, &key)?;
        let state = self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        Ok(self.document(core, &state.ok_or_else(|| not_found(&key))?))
    }

    pub(super) fn document(&self, core: CoreIndex, volume: &VolumeStatus) -> Volume {
        let portal = self.cores[core].portal();
        let nqn = nqn(volume.uuid);
        let access = volume.access.as_ref();
        let (restrictions, trouble) = access::shown(access);
        let grace = access.and_then(access::grace);
        let newest = access.and_then(|access| access.tokens.first());
        let has_controller = newest.is_some_and(|token| token.controller.is_some());
        let chap = ChapSource::TokenFiles { has_controller };
        let open_to = access.map(|access| access.nbd.clone()).unwrap_or_default();
        Volume {
            id: volume.uuid,
            name: volume.name.clone(),
            size_bytes: volume.blocks * BLOCK_SIZE as u64,
            sector_bytes: volume.sector.into(),
            metadata_bytes: u32::try_from(volume.metadata.bytes()).expect("at most 64"),
            allocated_bytes: volume.mapped_blocks * BLOCK_SIZE as u64,
            address: portal.address,
            portal,
            device: self.devices[volume.device].name().to_owned(),
            drive: self.membership.drive(volume.device),
            slo: slo_document(volume.slo),
            absent_interfaces: interfaces::absent(&restrictions.interfaces),
            restrictions,
            nbd_uris: self.nbd_uris(core, &volume.name, &open_to),
            nbd_connect: self.nbd_connect_lines(core, &volume.name, &open_to),
            iscsi_connect: self.iscsi_connect(core, volume, chap),
            nbd: access::nbd_document(&open_to),
            grace_until: grace.map(|grace| grace.until),
            grace_seconds_left: grace.map(|grace| grace.seconds_left),
            owner: access.and_then(|access| access.owner.clone()),
            connect: connect_line(&nqn, portal.address, self.tokens.are_required),
            nqn,
            state: match self.is_fenced() {
                true => VolumeState::Unreachable,
                false => VolumeState::Online,
            },
            trouble,
            host: self.membership.name.clone(),
            labels: self.membership.labels.clone(),
            cut_off: None,
        }
    }
}

pub(super) fn not_found(key: &VolumeKey) -> ServiceError {
    ServiceError::NotFound { volume: key.to_string() }
}
