//! Changes to volumes, done by the cores that hold them.

use ::access::Access;
use control::{
    Caller, ChangeAuth, ChangeRestrictions, ChapSource, CreateVolume, CreatedVolume, CutOff,
    MetadataBytes, Resizing, SectorBytes, ServiceError, Tokens, Volume, VolumeKey,
};
use data_core::CoreMessage;
use dataplane::{ChangeError, Loss, VolumeStatus};
use directory::{Admit, VolumeRecord, VolumeState};
use io_traits::DeviceError;
use iscsi_frontend::chap_secrets;
use schedule::{Promise, Slo};
use tokio::sync::MutexGuard;
use units::{BLOCK_SIZE, ByteLen, CoreIndex, DeviceIndex, MetadataSize, SectorSize};
use user_messages::output::counted;
use uuid::Uuid;
use volume::{Terms, VolumeError, VolumeSpec};

use super::access;
use super::cluster::restrictions_record;
use super::directory::{Extent, Known, Place};
use super::documents::not_found;
use super::quota;
use super::sharing::{slo_document, slo_of};
use super::state::State;

impl State {
    /// Waits until no other change to what lies on `device` is under way (SERVICE-1).
    pub(super) async fn alone_on(
        &self,
        device: DeviceIndex,
    ) -> Result<MutexGuard<'_, ()>, ServiceError> {
        let alone = self.devices[device].alone().await;
        if !self.opening.is_open() {
            return Err(ServiceError::Unavailable);
        }
        if self.is_absent(device) {
            return Err(self.away(device));
        }
        if self.is_abandoned(device) {
            let claim = self.view().claims.get(&self.device_id(device)).cloned();
            let holder = claim.map_or_else(|| "unknown".to_owned(), |c| c.host_name.clone());
            return Err(ServiceError::DeviceLost { holder });
        }
        Ok(alone)
    }

    pub(super) async fn create(
        &self,
        caller: &Caller,
        request: CreateVolume,
    ) -> Result<CreatedVolume, ServiceError> {
        let CreateVolume { name, size_bytes, core, device, slo, restrictions, .. } = request;
        let CreateVolume { metadata_bytes, sector_bytes, owner, .. } = request;
        let owner = quota::owner_for(caller, owner)?;
        let (metadata, sector) = format_of(metadata_bytes, sector_bytes)?;
        self.names_are_known()?;
        let slo = slo_of(slo.unwrap_or_default());
        let id = Uuid::new_v4();
        let (access, mut tokens) = access::create(restrictions, owner.clone(), self.tokens.hash)?;
        self.catch_up(caller).await?;
        let devices = self.devices_for(device.as_deref()).await?;
        // From here to the reservation nothing is waited for: no other task comes between.
        let core = self.core_for(core)?;
        let device = self.promise_on_one_of(&devices, id, Promise { core, slo })?;
        let place = Place { id, core, device };
        let extent = Extent { size_bytes: size_bytes.bytes(), slo: slo_document(slo) };
        let known = Known { name: name.to_string(), place, owner, extent };
        let spec = VolumeSpec { uuid: id, name: name.to_string(), blocks: size_bytes.blocks() };
        let may_open = access.encode().expect("looked at");
        let terms = Terms { slo, access: may_open, metadata, sector };
        let made = match self.directory(|directory| directory.reserve(caller, &name, known)) {
            Ok(()) => {
                let admit = self.admission(caller, (id, None), extent);
                self.make(place, spec, terms, (&access, admit)).await
            }
            Err(refused) => Err(refused),
        };
        let made = made.inspect_err(|_| {
            self.directory(|directory| directory.give_up(id));
            self.devices[device].shared(|shared| shared.remove(id));
        })?;
        self.share_out(device);
        self.announce(place, &made, &access);
        tracing::info!(%name, %id, size_bytes = size_bytes.bytes(), core = self.cores[core].cpu,
            device = self.devices[device].name(), "volume created");
        self.add_chap_secrets(&mut tokens, core, &made, &access);
        let mut volume = self.document(core, &made);
        if let (Some(initiator), Some(target)) = (&tokens.chap_secret, &tokens.chap_target_secret) {
            let secrets = ChapSource::Secrets { initiator, target };
            volume.iscsi_connect = self.iscsi_connect(core, &made, secrets);
        }
        Ok(CreatedVolume { volume, tokens })
    }

    /// Has a volume made for which there is a place.
    async fn make(
        &self,
        place: Place,
        spec: VolumeSpec,
        terms: Terms,
        (access, admit): (&Access, Option<Admit>),
    ) -> Result<VolumeStatus, ServiceError> {
        let Place { id, core, device } = place;
        let key = VolumeKey::Id(id);
        let _alone = self.alone_on(device).await?;
        let record = VolumeRecord {
            id,
            name: spec.name.clone(),
            owner: access.owner.clone(),
            size_bytes: spec.blocks * BLOCK_SIZE as u64,
            sector_bytes: terms.sector.bytes() as u64,
            host: self.membership.id,
            device: self.device_id(device),
            core: self.cores[core].cpu,
            portal: self.cores[core].portal,
            state: VolumeState::Creating,
            restrictions: Some(restrictions_record(&access.restrictions)),
            promise: serde_json::to_value(slo_document(terms.slo)).unwrap_or_default(),
            nbd: self.nbd_record(core, &spec.name, access),
            iscsi: self.iscsi_portal(core, terms.metadata),
        };
        let directory = &self.membership.directory;
        let reserved = directory.reserve_if(record.clone(), admit).await;
        reserved.map_err(|error| self.told(device, error))?;
        let made = self.cores[core]
            .ask(|answer| CoreMessage::CreateVolume { device, spec, terms, answer })
            .await
            .and_then(|made| made.map_err(|error| refusal(&key, &error)));
        let made = match made {
            Ok(made) => made,
            Err(refused) => {
                if let Err(error) = directory.forget(record).await {
                    self.told(device, error);
                }
                return Err(refused);
            }
        };
        self.directory(|directory| directory.is_made(id));
        self.publish(core, &made).await;
        Ok(made)
    }

    /// The present record of access of the volume. One that cannot be read cannot be changed in part.
    async fn access(&self, key: &VolumeKey, place: Place) -> Result<Access, ServiceError> {
        let (id, core) = (place.id, &self.cores[place.core]);
        let state = core.ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        let access = state.ok_or_else(|| not_found(key))?.access;
        access.ok_or_else(|| ServiceError::Device { detail: access::UNREADABLE.to_owned() })
    }

    pub(super) async fn change_auth(
        &self,
        caller: &Caller,
        key: VolumeKey,
        change: ChangeAuth,
    ) -> Result<Tokens, ServiceError> {
        let place = self.place(caller, &key)?;
        let _alone = self.alone_on(place.device).await?;
        self.may_change(place.device).await?;
        let before = self.access(&key, place).await?;
        let (access, mut tokens) = access::rotated(before, change.grace_seconds, self.tokens.hash)?;
        let set = self.set_access(&key, place, access.clone(), change.cut).await?;
        self.announce(place, &set, &access);
        tracing::info!(name = set.name, id = %set.uuid, cut = change.cut,
            grace_seconds = change.grace_seconds, "tokens changed");
        self.add_chap_secrets(&mut tokens, place.core, &set, &access);
        Ok(tokens)
    }

    /// Adds the CHAP secrets of the newest token to what is shown of it, if initiators of the volume need them.
    fn add_chap_secrets(
        &self,
        tokens: &mut Tokens,
        core: CoreIndex,
        volume: &VolumeStatus,
        access: &Access,
    ) {
        let is_needed =
            self.tokens.are_required && self.iscsi_portal(core, volume.metadata).is_some();
        if let Some(token) = access.tokens.first().filter(|_| is_needed) {
            let secrets = chap_secrets(&token.secret, token.controller.as_ref());
            tokens.chap_secret = Some(secrets.initiator.to_string());
            tokens.chap_target_secret = Some(secrets.target.to_string());
        }
    }

    pub(super) async fn restrict(
        &self,
        caller: &Caller,
        key: VolumeKey,
        change: ChangeRestrictions,
    ) -> Result<Volume, ServiceError> {
        let place = self.place(caller, &key)?;
        let _alone = self.alone_on(place.device).await?;
        self.may_change(place.device).await?;
        let access = access::restricted(self.access(&key, place).await?, change)?;
        let set = self.set_access(&key, place, access.clone(), false).await?;
        let document = self.document(place.core, &set);
        let open_to = &document.restrictions;
        tracing::info!(name = set.name, id = %set.uuid, %open_to, "volume restricted");
        self.announce(place, &set, &access);
        self.publish(place.core, &set).await;
        Ok(document)
    }

    async fn set_access(
        &self,
        key: &VolumeKey,
        Place { id, core, .. }: Place,
        access: Access,
        cut: bool,
    ) -> Result<VolumeStatus, ServiceError> {
        self.cores[core]
            .ask(|answer| CoreMessage::SetAccess { id, access, cut, answer })
            .await?
            .map_err(|error| refusal(key, &error))
    }

    pub(super) async fn resize(
        &self,
        caller: &Caller,
        key: VolumeKey,
        resizing: Resizing,
    ) -> Result<Volume, ServiceError> {
        let place = self.place(caller, &key)?;
        let Place { id, core, device } = place;
        let Resizing { size, lose_data, if_size_bytes } = resizing;
        let (blocks, loss) = (size.blocks(), loss_of(lose_data));
        self.catch_up(caller).await?;
        let _alone = self.alone_on(device).await?;
        self.may_change(device).await?;
        self.check_size(&key, place, if_size_bytes).await?;
        let before = self.directory(|directory| {
            directory.change(caller, id, |extent| extent.size_bytes = size.bytes())
        })?;
        let after = Extent { size_bytes: size.bytes(), ..before };
        let admitted = self.admit_growth(caller, (place, before), after).await;
        let undo = || self.directory(|directory| directory.set_extent(id, before));
        let was_admitted = admitted.inspect_err(|_| undo())?;
        let resized = self.cores[core]
            .ask(|answer| CoreMessage::ResizeVolume { id, blocks, loss, answer })
            .await
            .and_then(|resized| resized.map_err(|error| refused_change(&key, error)));
        let (resized, cut_off) = match resized {
            Ok(resized) => resized,
            Err(refused) => {
                undo();
                if was_admitted {
                    self.take_back(place).await;
                }
                return Err(refused);
            }
        };
        let cut_off = cut_off
            .map(|cut| CutOff { bytes: cut.blocks * BLOCK_SIZE as u64, at_least: !cut.is_all });
        tracing::info!(name = resized.name, %id, size_bytes = size.bytes(),
            cut_off_bytes = cut_off.map(|cut| cut.bytes), "volume resized");
        self.publish(core, &resized).await;
        Ok(Volume { cut_off, ..self.document(core, &resized) })
    }

    /// Refuses another size if the volume has not the one that it is to have. No other change comes between: see
    /// [`State::alone_on`].
    async fn check_size(
        &self,
        key: &VolumeKey,
        place: Place,
        wanted: Option<u64>,
    ) -> Result<(), ServiceError> {
        let Some(wanted) = wanted else { return Ok(()) };
        let Place { id, core, .. } = place;
        let volume = self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        let found = volume.ok_or_else(|| not_found(key))?.blocks * BLOCK_SIZE as u64;
        match found == wanted {
            true => Ok(()),
            false => Err(ServiceError::SizeChanged { found, wanted }),
        }
    }

    pub(super) async fn set_slo(
        &self,
        caller: &Caller,
        key: VolumeKey,
        slo: Slo,
    ) -> Result<Volume, ServiceError> {
        let place = self.place(caller, &key)?;
        let Place { id, core, device } = place;
        self.catch_up(caller).await?;
        let _alone = self.alone_on(device).await?;
        self.may_change(device).await?;
        let shared = &self.devices[device];
        let extent = self.directory(|directory| {
            directory.change(caller, id, |extent| extent.slo = slo_document(slo))
        })?;
        let before = shared.shared(|shared| shared.promise(id));
        let after = Extent { slo: slo_document(slo), ..extent };
        let mut was_admitted = false;
        let promised = shared.shared(|shared| shared.admit(id, Promise { core, slo }));
        let set = match promised {
            Err(refused) => Err(refused),
            Ok(()) => match self.admit_growth(caller, (place, extent), after).await {
                Err(refused) => Err(refused),
                Ok(admitted) => {
                    was_admitted = admitted;
                    self.cores[core]
                        .ask(|answer| CoreMessage::SetSlo { id, slo, answer })
                        .await
                        .and_then(|set| set.map_err(|error| refusal(&key, &error)))
                }
            },
        };
        let set = match set {
            Ok(set) => set,
            Err(refused) => {
                self.directory(|directory| directory.set_extent(id, extent));
                if let Some(before) = before {
                    shared.shared(|shared| shared.admit_known(id, before));
                }
                if was_admitted {
                    self.take_back(place).await;
                }
                return Err(refused);
            }
        };
        self.share_out(device);
        let document = self.document(core, &set);
        tracing::info!(name = set.name, %id, promised = %document.slo, "volume promised");
        self.publish(core, &set).await;
        Ok(document)
    }

    pub(super) async fn delete(
        &self,
        caller: &Caller,
        key: VolumeKey,
        lose_data: bool,
    ) -> Result<(), ServiceError> {
        let place = self.place(caller, &key)?;
        let Place { id, core, device } = place;
        let _alone = self.alone_on(device).await?;
        self.may_change(device).await?;
        // As it is here: what was changed a moment ago the view may not show yet.
        let volume = self.cores[core].ask(|answer| CoreMessage::ShowVolume { id, answer }).await?;
        let record = volume.map(|volume| self.record(core, &volume));
        let loss = loss_of(lose_data);
        let deleted =
            self.cores[core].ask(|answer| CoreMessage::DeleteVolume { id, loss, answer }).await?;
        // One that was said to have failed may have come true when the device came back.
        if let Err(error) = deleted
            && error != ChangeError::Volume(VolumeError::Deleted)
        {
            return Err(refused_change(&key, error));
        }
        self.forget(id, device);
        self.share_out(device);
        tracing::info!(volume = %key, %id, "volume deleted");
        if let Some(record) = record
            && let Err(error) = self.membership.directory.forget(record).await
        {
            tracing::warn!(%id, "the directory is not told of a deletion yet: {error}");
            self.told(device, error);
        }
        Ok(())
    }

    /// A volume is gone.
    pub(super) fn forget(&self, id: Uuid, device: DeviceIndex) {
        self.directory(|directory| directory.remove(id));
        self.devices[device].shared(|shared| shared.remove(id));
        self.withdraw(id);
    }
}

fn loss_of(lose_data: bool) -> Loss {
    if lose_data { Loss::Accepted } else { Loss::Refused }
}

/// Maps the refusal of a change that may lose data to an error of the API.
fn refused_change(key: &VolumeKey, error: ChangeError) -> ServiceError {
    let (mapped_blocks, connections) = match error {
        ChangeError::Volume(error) => return refusal(key, &error),
        ChangeError::InUse { mapped_blocks, connections } => (mapped_blocks, connections as u64),
    };
    let holds = format!("holds {}", ByteLen(mapped_blocks * BLOCK_SIZE as u64));
    let is_open = format!("is open on {}", counted(connections, "connection"));
    let used = match (mapped_blocks, connections) {
        (0, _) => is_open,
        (_, 0) => holds,
        _ => format!("{holds} and {is_open}"),
    };
    ServiceError::VolumeInUse { detail: format!("the volume `{key}` {used}") }
}

/// Maps the engine's refusal to an error of the API.
fn refusal(key: &VolumeKey, error: &VolumeError) -> ServiceError {
    match error {
        VolumeError::Deleted => not_found(key),
        VolumeError::PoolFull
        | VolumeError::AllowanceSpent
        | VolumeError::Device(DeviceError::NoSpace { .. }) => ServiceError::OutOfSpace,
        VolumeError::ShutDown => ServiceError::Unavailable,
        VolumeError::Device(_)
        | VolumeError::JournalLost
        | VolumeError::Corrupt { .. }
        | VolumeError::CorruptMap { .. }
        // The API lets through no size or name that the engine would refuse, and ids are drawn.
        | VolumeError::OutOfRange { .. }
        | VolumeError::Length { .. }
        | VolumeError::Metadata { .. }
        | VolumeError::Exists(_)
        | VolumeError::Spec => ServiceError::Device { detail: error.to_string() },
    }
}

/// The format of a new volume.
fn format_of(
    metadata: Option<MetadataBytes>,
    sector: Option<SectorBytes>,
) -> Result<(MetadataSize, SectorSize), ServiceError> {
    let metadata = MetadataSize::from(metadata.unwrap_or_default());
    let sector = SectorSize::from(sector.unwrap_or_default());
    if sector == SectorSize::Bytes512 && !metadata.is_none() {
        let detail = "logical blocks of 512 bytes have no metadata: leave out `metadata_bytes` or `sector_bytes`";
        return Err(ServiceError::Setting { detail: detail.to_owned() });
    }
    Ok((metadata, sector))
}
