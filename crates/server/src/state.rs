//! State of the control side. Each part of it is a type that other modules change by its methods alone; what concerns several
//! parts is done by methods of [`State`], which stand beside what they are for.

use control::ServiceError;
use data_core::CoreMessage;
use typed_index_collections::TiVec;
use units::DeviceIndex;

use super::access::TokenRules;
use super::allowance::Quotas;
use super::cluster::Asked;
use super::cores::Cores;
use super::directory::{Directory, SharedDirectory};
use super::in_flight::InFlight;
use super::membership::Membership;
use super::offers::Offers;
use super::own_conditions::OwnNotices;
use super::served_device::ServedDevice;
use super::service::Opening;
use super::tasks::Tasks;
use super::tenure::Fencing;

pub(super) struct State {
    pub(super) cores: Cores,
    /// By number.
    pub(super) devices: TiVec<DeviceIndex, ServedDevice>,
    /// The places of the volumes here.
    pub(super) directory: SharedDirectory,
    /// The volumes that discovery here offers.
    pub(super) offers: Offers,
    /// The space that tenants may hold.
    pub(super) quotas: Quotas,
    /// This host in the service.
    pub(super) membership: Membership,
    /// Tells if hosts are cut off until the directory confirms what is this host's.
    pub(super) fencing: Fencing,
    /// Other hosts that ask for devices of this one.
    pub(super) asked: Asked,
    pub(super) tokens: TokenRules,
    /// Tells if changes are accepted.
    pub(super) opening: Opening,
    /// Changes of tenants that are under way.
    pub(super) in_flight: InFlight,
    /// Tasks that have to live as long as the server.
    pub(super) tasks: Tasks,
    /// Conditions of this server that were seen a moment ago.
    pub(super) own_notices: OwnNotices,
}

impl State {
    pub(super) fn directory<T>(&self, look: impl FnOnce(&mut Directory) -> T) -> T {
        self.directory.with(look)
    }

    /// The number of the device that the API calls `name`.
    pub(super) fn device_named(&self, name: &str) -> Result<DeviceIndex, ServiceError> {
        self.devices.position(|device| device.name() == name).ok_or_else(|| {
            let devices = self.devices.iter().map(|device| device.name().to_owned()).collect();
            ServiceError::UnknownDevice { device: name.to_owned(), devices }
        })
    }

    /// Tells every core its part of a device, and what its volumes may count on.
    pub(super) fn share_out(&self, device: DeviceIndex) {
        let shares = self.devices[device].shared(|shared| shared.core_shares());
        for (core, share) in self.cores.iter().zip(shares) {
            // A core that has ended has no part in anything.
            let _ = core.mailbox.send(CoreMessage::Schedule { device, share });
        }
    }
}
