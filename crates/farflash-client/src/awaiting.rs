//! Requests to a cluster that do not wait, for asynchronous callers.

use control::{ChangeAuth, ChangeRestrictions, CreatedVolume, Slo, Tokens, Volume as VolumeRecord};

use crate::asking::begin;
use crate::{Cluster, Error, NewVolume, OpenOptions, Pending, ResizeOptions, Volume};

/// The same without waiting: what these return can be awaited under any executor, or waited for. They begin when they
/// are called; sixteen of a process are under way at a time, others wait for their turn. Callbacks can call them.
impl Cluster {
    /// Like [`Cluster::create`].
    pub fn start_create(&self, new: &NewVolume) -> Pending<CreatedVolume> {
        let new = new.clone();
        self.aside(move |cluster| cluster.create(&new))
    }

    /// Like [`Cluster::list`].
    pub fn start_list(&self) -> Pending<Vec<VolumeRecord>> {
        self.aside(Self::list)
    }

    /// Like [`Cluster::show`].
    pub fn start_show(&self, volume: &str) -> Pending<VolumeRecord> {
        let volume = volume.to_owned();
        self.aside(move |cluster| cluster.show(&volume))
    }

    /// Like [`Cluster::open`]. A volume whose outcome is dropped is closed.
    pub fn start_open(&self, volume: &str, options: &OpenOptions) -> Pending<Volume> {
        Volume::start_open(self.sought(volume), options)
    }

    /// Like [`Cluster::resize`].
    pub fn start_resize(&self, volume: &str, size_bytes: u64) -> Pending<VolumeRecord> {
        let volume = volume.to_owned();
        self.aside(move |cluster| cluster.resize(&volume, size_bytes))
    }

    /// Like [`Cluster::resize_with`].
    pub fn start_resize_with(
        &self,
        volume: &str,
        size_bytes: u64,
        options: &ResizeOptions,
    ) -> Pending<VolumeRecord> {
        let (volume, options) = (volume.to_owned(), *options);
        self.aside(move |cluster| cluster.resize_with(&volume, size_bytes, &options))
    }

    /// Like [`Cluster::delete_with_data`].
    pub fn start_delete_with_data(&self, volume: &str) -> Pending<()> {
        let volume = volume.to_owned();
        self.aside(move |cluster| cluster.delete_with_data(&volume))
    }

    /// Like [`Cluster::set_slo`].
    pub fn start_set_slo(&self, volume: &str, slo: Slo) -> Pending<VolumeRecord> {
        let volume = volume.to_owned();
        self.aside(move |cluster| cluster.set_slo(&volume, slo))
    }

    /// Like [`Cluster::change_auth`].
    pub fn start_change_auth(&self, volume: &str, change: &ChangeAuth) -> Pending<Tokens> {
        let (volume, change) = (volume.to_owned(), *change);
        self.aside(move |cluster| cluster.change_auth(&volume, &change))
    }

    /// Like [`Cluster::restrict`].
    pub fn start_restrict(
        &self,
        volume: &str,
        change: &ChangeRestrictions,
    ) -> Pending<VolumeRecord> {
        let (volume, change) = (volume.to_owned(), change.clone());
        self.aside(move |cluster| cluster.restrict(&volume, &change))
    }

    /// Like [`Cluster::delete`].
    pub fn start_delete(&self, volume: &str) -> Pending<()> {
        let volume = volume.to_owned();
        self.aside(move |cluster| cluster.delete(&volume))
    }

    fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        let own = self.clone();
        begin(|_, core| async move { core.aside(move || work(&own)).await })
    }
}
