//! Servers that belong together: volumes made, found, opened and deleted.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use control::{
    ChangeAuth, ChangeRestrictions, ChangeVolume, CreateVolume, CreatedVolume, MetadataBytes,
    Restrictions, SectorBytes, Slo, Tokens, Volume as VolumeRecord, VolumeName, VolumeSize,
};

use crate::directory::{Directory, Place};
use crate::open::variable;
use crate::volume::Sought;
use crate::{Error, OpenOptions, Pending, Target, Volume};

/// The properties of a new volume.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name: 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`.
    pub name: String,
    /// Its size, a multiple of 4096.
    pub size_bytes: u64,
    /// Bytes of metadata that each block has beside its data, for life: 8, 16, 64, or 0 for none. Such a volume
    /// takes [`Volume::write_ex`] and its like only.
    pub metadata_size: u32,
    /// Bytes of a logical block, as hosts address it, for life: 512 or 4096. Volumes with metadata have 4096. This library uses
    /// either, and [`Volume::properties`] tells the size.
    pub sector_size: u32,
    /// The host that is to have it, or a label that its host must have, such as `rack=r1`; by default the host
    /// whose API is asked. See [`Volume::failure_domain`].
    pub on: Option<String>,
    /// The device of that host that is to hold it; by default the one with the most free space.
    pub device: Option<String>,
    /// The core that is to serve it; by default the one with the fewest volumes.
    pub core: Option<u32>,
    /// Service level that its device has to keep.
    pub slo: Option<Slo>,
    /// Restrictions on the hosts that may open it, besides knowing its token.
    pub restrictions: Option<Restrictions>,
    /// The tenant whose it is to be; for operators.
    pub owner: Option<String>,
}

impl NewVolume {
    /// A volume of which nothing else is said.
    #[must_use]
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        let name = name.into();
        Self {
            name,
            size_bytes,
            metadata_size: 0,
            sector_size: 4096,
            on: None,
            device: None,
            core: None,
            slo: None,
            restrictions: None,
            owner: None,
        }
    }
}

/// Options to reach a cluster's API.
#[derive(Clone, Default)]
pub struct ClusterOptions {
    /// Its addresses, such as `http://192.0.2.1:7420` or `https://flash-1:7420`. Any of them is asked that answers.
    pub urls: Vec<String>,
    /// The token by which the API knows the user.
    pub api_token: Option<String>,
    /// A file with the only certificates that are trusted in `https` addresses, in PEM: the server's own
    /// (`certificate.pem` in the directory of `farflash serve --api-tls`), or that of its certificate authority. By
    /// default the file that `FARFLASH_API_CA` names, or else the trust roots of this machine.
    pub api_ca: Option<PathBuf>,
}

impl fmt::Debug for ClusterOptions {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterOptions")
            .field("urls", &self.urls)
            .field("has_api_token", &self.api_token.is_some())
            .field("api_ca", &self.api_ca)
            .finish()
    }
}

impl ClusterOptions {
    /// The addresses that `FARFLASH_API` names, separated by commas, with the token in `FARFLASH_API_TOKEN`.
    #[must_use]
    pub fn from_env() -> Self {
        let urls = Self::urls_of(&variable("FARFLASH_API").unwrap_or_default());
        Self { urls, api_token: variable("FARFLASH_API_TOKEN"), api_ca: None }
    }

    /// The addresses in `list`, which are separated by commas; none if it is empty. One of them that is empty is no address,
    /// and is refused when it is used.
    #[must_use]
    pub fn urls_of(list: &str) -> Vec<String> {
        match list.trim() {
            "" => Vec::new(),
            list => list.split(',').map(|url| url.trim().to_owned()).collect(),
        }
    }
}

/// One or more servers, reached through their API. Cheap to clone, usable on any thread.
#[derive(Clone)]
pub struct Cluster {
    directory: Arc<Directory>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// The servers whose API is at `urls`, such as `http://192.0.2.1:7420`; `token` identifies the caller. Requests
    /// go to any of them that answers. Nothing is sent yet.
    pub fn new(
        urls: impl IntoIterator<Item = impl Into<String>>,
        token: Option<&str>,
    ) -> Result<Self, Error> {
        Self::with(&ClusterOptions {
            urls: urls.into_iter().map(Into::into).collect(),
            api_token: token.map(str::to_owned),
            api_ca: None,
        })
    }

    /// The servers that are reached like this. Nothing is sent yet.
    pub fn with(options: &ClusterOptions) -> Result<Self, Error> {
        Ok(Self { directory: Arc::new(Directory::new(options)?) })
    }

    /// The servers that the environment names: see [`ClusterOptions::from_env`].
    pub fn from_env() -> Result<Self, Error> {
        Self::with(&ClusterOptions::from_env())
    }

    /// Makes a volume. The tokens in the answer are told this once.
    pub fn create(&self, new: &NewVolume) -> Result<CreatedVolume, Error> {
        let NewVolume {
            name,
            size_bytes,
            metadata_size,
            sector_size,
            on,
            device,
            core,
            slo,
            restrictions,
            owner,
        } = new.clone();
        let parsed: VolumeName = name.parse()?;
        let metadata = MetadataBytes::try_from(u64::from(metadata_size))?;
        let sector = SectorBytes::try_from(u64::from(sector_size))?;
        let request = CreateVolume {
            name: parsed,
            size_bytes: VolumeSize::try_from(size_bytes)?,
            metadata_bytes: (metadata_size > 0).then_some(metadata),
            sector_bytes: (sector != SectorBytes::default()).then_some(sector),
            on,
            device,
            core,
            slo,
            restrictions,
            owner,
        };
        self.directory.change(&name, |api| api.create(&request))
    }

    /// All volumes that this user may see, by name.
    pub fn list(&self) -> Result<Vec<VolumeRecord>, Error> {
        Ok(self.directory.ask("", control::ApiClient::list)?.volumes)
    }

    /// Returns the cluster's record of a volume, given by name or id.
    pub fn show(&self, volume: &str) -> Result<VolumeRecord, Error> {
        self.directory.ask(volume, |api| api.show(volume))
    }

    /// Opens a volume, given by name or id.
    pub fn open(&self, volume: &str, options: &OpenOptions) -> Result<Volume, Error> {
        Volume::open(self.sought(volume), options)
    }

    pub(crate) fn sought(&self, volume: &str) -> Sought {
        Sought::Named(self.directory.clone(), volume.to_owned())
    }

    /// Makes a volume larger, or smaller if it holds nothing and no host has it open. See [`Cluster::resize_with`].
    pub fn resize(&self, volume: &str, size_bytes: u64) -> Result<VolumeRecord, Error> {
        self.resize_with(volume, size_bytes, &ResizeOptions::default())
    }

    /// Changes a volume's size, as the options allow. What lies beyond a smaller one is lost at once; `cut_off` of what is
    /// returned says how much that was.
    pub fn resize_with(
        &self,
        volume: &str,
        size_bytes: u64,
        options: &ResizeOptions,
    ) -> Result<VolumeRecord, Error> {
        let ResizeOptions { lose_data, if_size_bytes } = *options;
        let size_bytes = Some(VolumeSize::try_from(size_bytes)?);
        let request =
            ChangeVolume { size_bytes, lose_data, if_size_bytes, ..ChangeVolume::default() };
        self.directory.change(volume, |api| api.change(volume, &request))
    }

    /// Changes what a volume is promised of its device.
    pub fn set_slo(&self, volume: &str, slo: Slo) -> Result<VolumeRecord, Error> {
        let request = ChangeVolume { slo: Some(slo), ..ChangeVolume::default() };
        self.directory.change(volume, |api| api.change(volume, &request))
    }

    /// Makes new tokens for a volume; the old ones open it no longer, or for the time given.
    pub fn change_auth(&self, volume: &str, change: &ChangeAuth) -> Result<Tokens, Error> {
        self.directory.change(volume, |api| api.change_auth(volume, change))
    }

    /// Changes which hosts may open a volume, besides knowing its token.
    pub fn restrict(
        &self,
        volume: &str,
        change: &ChangeRestrictions,
    ) -> Result<VolumeRecord, Error> {
        self.directory.change(volume, |api| api.restrict(volume, change))
    }

    /// Deletes a volume that holds nothing and that no host has open.
    pub fn delete(&self, volume: &str) -> Result<(), Error> {
        self.directory.forget(volume);
        self.directory.change(volume, |api| api.delete(volume))
    }

    /// Deletes a volume with all that is on it. Hosts that have it open lose it at once.
    pub fn delete_with_data(&self, volume: &str) -> Result<(), Error> {
        self.directory.forget(volume);
        self.directory.change(volume, |api| api.delete_with_data(volume))
    }

    /// Returns the number of changes, by this and its clones, that were answered but whose outcome could not be
    /// recorded: the audit log of the server has the request, and not its outcome.
    #[must_use]
    pub fn incomplete_records(&self) -> u64 {
        self.directory.incomplete_records()
    }
}

/// The conditions for another size, and what may be lost.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ResizeOptions {
    /// Make the volume smaller though it holds data or a host has it open.
    pub lose_data: bool,
    /// Only if the volume has this size now: another program may have changed it.
    pub if_size_bytes: Option<u64>,
}

/// Opens what `target` names: a volume's name or id, which the cluster in the environment is asked for,
/// or `tcp://IP:PORT/NQN`.
pub fn open(target: &str, options: &OpenOptions) -> Result<Volume, Error> {
    Volume::open(sought(target)?, options)
}

/// Like [`open`], without waiting.
pub fn start_open(target: &str, options: &OpenOptions) -> Pending<Volume> {
    match sought(target) {
        Ok(sought) => Volume::start_open(sought, options),
        Err(error) => Pending::failed(error),
    }
}

fn sought(target: &str) -> Result<Sought, Error> {
    Ok(match target.parse()? {
        Target::Name(name) => Cluster::from_env()?.sought(&name),
        Target::Place { address, nqn } => Sought::At(Box::new(Place { address, nqn: *nqn })),
    })
}
