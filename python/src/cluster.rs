//! Provisioning. Records go to Python as JSON, which `farflash/_cluster.py` makes classes of.

use std::path::PathBuf;
use std::time::Duration;

use farflash_client::{
    ChangeAuth, ChangeRestrictions, ClusterOptions, NewVolume, OpenOptions, ResizeOptions,
    Restrictions, Slo,
};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::exception;
use crate::volume::Volume;
use crate::waiting::{wait, wait_to_the_end};

/// Servers that belong together. Internal; see farflash.Cluster.
#[pyclass(frozen, module = "farflash")]
pub(crate) struct Cluster(farflash_client::Cluster);

fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records of numbers and strings always encode")
}

/// Options to open a volume.
#[derive(FromPyObject)]
pub(crate) struct Options {
    token: Option<String>,
    controller_token: Option<String>,
    host_nqn: Option<String>,
    connections: u16,
    depth: u16,
    digests: bool,
    recovery_timeout: f64,
}

impl Options {
    fn options(self) -> OpenOptions {
        let recovery_timeout = Duration::try_from_secs_f64(self.recovery_timeout);
        OpenOptions {
            token: self.token,
            controller_token: self.controller_token,
            host_nqn: self.host_nqn,
            connections: self.connections,
            depth: self.depth,
            digests: self.digests,
            recovery_timeout: recovery_timeout.unwrap_or_default(),
        }
    }
}

/// Properties of a new volume.
#[derive(FromPyObject)]
pub(crate) struct New {
    name: String,
    size: u64,
    metadata: u32,
    sector: u32,
    on: Option<String>,
    device: Option<String>,
    core: Option<u32>,
    share: Option<u32>,
    rates: Option<(u64, u64)>,
    hosts: Vec<String>,
    networks: Vec<String>,
    interfaces: Vec<String>,
    owner: Option<String>,
}

impl New {
    fn new_volume(self) -> NewVolume {
        let Self { hosts, networks, interfaces, .. } = self;
        let restrictions = Restrictions { hosts, networks, interfaces };
        NewVolume {
            name: self.name,
            size_bytes: self.size,
            metadata_size: self.metadata,
            sector_size: self.sector,
            on: self.on,
            device: self.device,
            core: self.core,
            slo: slo(self.share, self.rates),
            restrictions: Some(restrictions).filter(|some| *some != Restrictions::default()),
            owner: self.owner,
        }
    }
}

/// Returns the service level; the package has made sure that it is not both.
fn slo(share: Option<u32>, rates: Option<(u64, u64)>) -> Option<Slo> {
    let rate =
        |(reads_per_second, writes_per_second)| Slo::Rate { reads_per_second, writes_per_second };
    share.map(Slo::Share).or_else(|| rates.map(rate))
}

/// Opens tcp://IP:PORT/NQN, or what the cluster in the environment knows.
#[pyfunction]
pub(crate) fn open_place(py: Python<'_>, target: &str, options: Options) -> PyResult<Volume> {
    let options = options.options();
    wait(py, farflash_client::start_open(target, &options)).map(Volume)
}

#[pymethods]
impl Cluster {
    #[new]
    fn new(
        py: Python<'_>,
        urls: Vec<String>,
        token: Option<String>,
        ca: Option<PathBuf>,
    ) -> PyResult<Self> {
        let options = ClusterOptions { urls, api_token: token, api_ca: ca };
        let made = py.detach(|| farflash_client::Cluster::with(&options));
        made.map(Self).map_err(|error| exception(py, &error))
    }

    fn open(&self, py: Python<'_>, volume: &str, options: Options) -> PyResult<Volume> {
        let options = options.options();
        wait(py, self.0.start_open(volume, &options)).map(Volume)
    }

    fn create(&self, py: Python<'_>, new: New) -> PyResult<String> {
        let new = new.new_volume();
        wait_to_the_end(py, self.0.start_create(&new)).map(|created| json(&created))
    }

    fn set_slo(
        &self,
        py: Python<'_>,
        volume: &str,
        share: Option<u32>,
        rates: Option<(u64, u64)>,
    ) -> PyResult<String> {
        let slo = slo(share, rates).unwrap_or_default();
        wait_to_the_end(py, self.0.start_set_slo(volume, slo)).map(|record| json(&record))
    }

    fn list(&self, py: Python<'_>) -> PyResult<String> {
        wait(py, self.0.start_list()).map(|records| json(&records))
    }

    fn show(&self, py: Python<'_>, volume: &str) -> PyResult<String> {
        wait(py, self.0.start_show(volume)).map(|record| json(&record))
    }

    fn resize(
        &self,
        py: Python<'_>,
        volume: &str,
        size: u64,
        lose_data: bool,
        if_size_bytes: Option<u64>,
    ) -> PyResult<String> {
        let options = ResizeOptions { lose_data, if_size_bytes };
        let pending = self.0.start_resize_with(volume, size, &options);
        wait_to_the_end(py, pending).map(|record| json(&record))
    }

    fn change_auth(
        &self,
        py: Python<'_>,
        volume: &str,
        cut: bool,
        grace_seconds: Option<u32>,
    ) -> PyResult<String> {
        let change = ChangeAuth { cut, grace_seconds };
        wait_to_the_end(py, self.0.start_change_auth(volume, &change)).map(|tokens| json(&tokens))
    }

    fn restrict(
        &self,
        py: Python<'_>,
        volume: &str,
        hosts: Option<Vec<String>>,
        networks: Option<Vec<String>>,
        interfaces: Option<Vec<String>>,
    ) -> PyResult<String> {
        let change = ChangeRestrictions { hosts, networks, interfaces, nbd: None };
        wait_to_the_end(py, self.0.start_restrict(volume, &change)).map(|record| json(&record))
    }

    fn delete(&self, py: Python<'_>, volume: &str, lose_data: bool) -> PyResult<()> {
        let pending = match lose_data {
            true => self.0.start_delete_with_data(volume),
            false => self.0.start_delete(volume),
        };
        wait_to_the_end(py, pending)
    }

    #[getter]
    fn incomplete_records(&self) -> u64 {
        self.0.incomplete_records()
    }
}
