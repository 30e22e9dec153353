//! The locations of volumes: asks the servers' API, any of them, and caches the answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use control::{ANSWER_LIMIT, ApiClient, ApiError, VolumeState};
use nvme_wire::Nqn;

use crate::open::variable;
use crate::runtime::check_may_wait;
use crate::{ClusterOptions, Error};

/// Locations cached at most. Beyond that the cache is emptied.
const PLACES_MAX: usize = 4096;

/// The location of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) nqn: Nqn,
}

/// The cluster's answer about a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Found {
    pub(crate) place: Place,
    /// True if it is served there now.
    pub(crate) is_served: bool,
}

/// The way to a cluster's API.
pub(crate) struct Directory {
    apis: Vec<ApiClient>,
    /// The API that answered last.
    preferred: AtomicUsize,
    places: Mutex<BTreeMap<String, Place>>,
}

impl Directory {
    /// The API at each of the addresses; all of them belong to one cluster.
    pub(crate) fn new(options: &ClusterOptions) -> Result<Self, Error> {
        let ClusterOptions { urls, api_token: token, api_ca } = options;
        let of_environment = || variable("FARFLASH_API_CA").map(PathBuf::from);
        let authorities = api_ca.clone().or_else(of_environment);
        let token = token.as_deref().map(auth::token_in).transpose().map_err(Error::TokenText)?;
        let api = |url: &String| {
            let api = ApiClient::trusting(url, authorities.as_deref());
            let api = api.map_err(|error| Error::of_api(error, ""))?;
            Ok(match token {
                Some(token) => api.with_token(token),
                None => api,
            })
        };
        Ok(Self {
            apis: urls.iter().map(api).collect::<Result<_, Error>>()?,
            preferred: AtomicUsize::new(0),
            places: Mutex::default(),
        })
    }

    /// Returns the cached location of `volume`.
    pub(crate) fn remembered(&self, volume: &str) -> Option<Place> {
        self.lock().get(volume).copied()
    }

    /// Asks where `volume`, a name or id, is. Waits, for each API at most for `limit` if that is given.
    pub(crate) fn locate(&self, volume: &str, limit: Option<Duration>) -> Result<Found, Error> {
        let record = match limit {
            Some(limit) => self.first_answer(volume, |api| api.show_within(volume, limit)),
            None => self.ask(volume, |api| api.show(volume)),
        };
        if matches!(record, Err(Error::NotFound { .. })) {
            self.forget(volume);
        }
        let record = record?;
        let no_place = |error| {
            let nqn = record.nqn.clone();
            Error::Target(crate::TargetError::BadNqn { nqn, error })
        };
        let nqn = record.nqn.parse().map_err(no_place)?;
        let place = Place { address: record.address, nqn };
        let mut places = self.lock();
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        places.insert(volume.to_owned(), place);
        Ok(Found { place, is_served: record.state == VolumeState::Online })
    }

    pub(crate) fn forget(&self, volume: &str) {
        self.lock().remove(volume);
    }

    /// Asks one API after the other until one answers. For questions, which can be asked twice. Where there are others to be
    /// asked, one that does not answer at all holds up no question for longer than [`ANSWER_LIMIT`].
    pub(crate) fn ask<T>(
        &self,
        volume: &str,
        question: impl Fn(&ApiClient) -> Result<T, ApiError>,
    ) -> Result<T, Error> {
        if self.apis.len() < 2 {
            return self.first_answer(volume, question);
        }
        self.first_answer(volume, |api| match api.server_within(ANSWER_LIMIT) {
            Err(error) if error.is_no_answer() => Err(error),
            // A refusal is an answer, too.
            _ => question(api),
        })
    }

    /// Puts the question to one API after the other until one answers.
    fn first_answer<T>(
        &self,
        volume: &str,
        question: impl Fn(&ApiClient) -> Result<T, ApiError>,
    ) -> Result<T, Error> {
        check_may_wait()?;
        let first = self.preferred.load(Ordering::Relaxed);
        let mut last = None;
        for index in (first..self.apis.len()).chain(0..first) {
            match question(&self.apis[index]) {
                Err(error) if error.is_no_answer() => last = Some(error),
                answer => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return answer.map_err(|error| Error::of_api(error, volume));
                }
            }
        }
        Err(match last {
            Some(error) => Error::of_api(error, volume),
            None => Error::NoApi { volume: volume.to_owned() },
        })
    }

    /// Has one API make a change that must not be made twice: the first one that can be reached. If its answer is
    /// lost, it is unknown whether the change was made.
    pub(crate) fn change<T>(
        &self,
        volume: &str,
        change: impl FnOnce(&ApiClient) -> Result<T, ApiError>,
    ) -> Result<T, Error> {
        check_may_wait()?;
        if self.apis.len() > 1 {
            self.ask(volume, |_| Ok(()))?;
        }
        let api = self.apis.get(self.preferred.load(Ordering::Relaxed));
        let api = api.ok_or_else(|| Error::NoApi { volume: volume.to_owned() })?;
        change(api).map_err(|error| match error {
            error if error.may_have_been_done() => Error::ChangeUnknown(Arc::new(error)),
            error => Error::of_api(error, volume),
        })
    }

    pub(crate) fn incomplete_records(&self) -> u64 {
        self.apis.iter().map(ApiClient::incomplete_records).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
