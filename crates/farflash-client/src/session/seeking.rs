//! One attempt to find a volume again: at its old place and, at the same time, where the cluster says.
//!
//! - SEEK-1: the first answer is believed. An API that hangs holds up nothing, and an old place that hangs does not
//!   hold up a new one.
//! - SEEK-2: a volume has one question under way at a time, on a thread of its own, and each API has
//!   [`ANSWER_TIMEOUT`] to answer it.
//! - SEEK-3: where a volume was refused the cluster is asked first, and while it says that the volume is not served
//!   nothing is tried (CLIENT-REFUSAL-2).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration as StdDuration;

use client::Options;
use control::{ApiError, ProblemCode};
use io_traits::World;
use local_sync::{Either, first_of};
use reactor::{Receiver, mailbox};
use units::Duration;

use super::{Link, Locator, Session, connect};
use crate::Error;
use crate::directory::{Directory, Found, Place};

/// Limit for an API's answer. An API that takes longer is passed over for the next.
const ANSWER_TIMEOUT: StdDuration = StdDuration::from_secs(5);
/// Limit for an attempt to wait for the answer when the volume is not at its old location. The next attempt finds
/// the same question under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question to the cluster: where the volume is.
pub(super) struct Question(Receiver<Result<Found, Error>>);

impl Question {
    fn ask(directory: Arc<Directory>, volume: String) -> Result<Self, Error> {
        let (answer, answered) = mailbox();
        let asked =
            std::thread::Builder::new().name("farflash-locate".to_owned()).spawn(move || {
                // The receiver may be gone.
                let _ = answer.send(directory.locate(&volume, Some(ANSWER_TIMEOUT)));
            });
        asked.map(|_| Self(answered)).map_err(|error| Error::NoThread(Arc::new(error)))
    }

    async fn answer(&mut self) -> Result<Found, Error> {
        self.0.recv().await.unwrap_or(Err(Error::Stopped))
    }
}

/// Outcome of an attempt that led to no connection.
pub(super) enum NoLink {
    /// The cluster says that the volume is not served. Nothing was tried; it was refused before, like this.
    Away(Error),
    Failed {
        error: Error,
        /// True if the volume should have been there, by all that is known.
        is_served: bool,
    },
}

/// An attempt to connect.
type Attempt<W> = Pin<Box<dyn Future<Output = Result<Link<W>, Error>>>>;

impl<W: World> Session<W> {
    /// One attempt. If the last one was refused, the cluster is asked first (SEEK-3).
    pub(super) async fn connect_again(&self, refused: Option<Error>) -> Result<Link<W>, NoLink> {
        let old = self.place.get();
        let Locator::Cluster(directory, id) = &self.locator else {
            // A fixed location is taken for right.
            return self.adopt(Found { place: old, is_served: true }, self.try_at(old).await);
        };
        let somewhere = Found { place: old, is_served: false };
        let under_way = self.question.take();
        let asked = under_way.map_or_else(|| Question::ask(directory.clone(), id.clone()), Ok);
        let Ok(mut question) = asked else {
            return self.adopt(somewhere, self.try_at(old).await);
        };
        if let Some(refusal) = refused {
            return match self.answer_to(question).await {
                Some(answer) if is_away(&answer) => Err(NoLink::Away(refusal)),
                Some(Err(error)) if is_not_found(&error) => self.adopt(somewhere, Err(error)),
                Some(Ok(found)) => self.adopt(found, self.try_at(found.place).await),
                // The location is unknown.
                Some(Err(_)) | None => self.adopt(somewhere, self.try_at(old).await),
            };
        }
        // SEEK-1
        let mut at_old = self.try_at(old);
        let answer = match first_of(&mut at_old, question.answer()).await {
            Either::First(Err(error)) => match self.answer_to(question).await {
                Some(Ok(found)) if found.place == old => return self.adopt(found, Err(error)),
                Some(Err(answer)) if !is_not_found(&answer) => {
                    return self.adopt(somewhere, Err(error));
                }
                Some(answer) => answer,
                None => return self.adopt(somewhere, Err(error)),
            },
            Either::First(link) => return self.adopt(somewhere, link),
            Either::Second(answer) => answer,
        };
        match answer {
            Ok(found) if found.place != old => {
                drop(at_old);
                self.adopt(found, self.try_at(found.place).await)
            }
            Err(error) if is_not_found(&error) => self.adopt(somewhere, Err(error)),
            // It is where it was, or its location is unknown.
            answer => self.adopt(answer.unwrap_or(somewhere), at_old.await),
        }
    }

    /// The answer to a question, if it comes soon.
    async fn answer_to(&self, mut question: Question) -> Option<Result<Found, Error>> {
        let patience = self.world.sleep_until(self.world.now() + PATIENCE);
        match first_of(question.answer(), patience).await {
            Either::First(answer) => Some(answer),
            Either::Second(()) => {
                self.question.replace(Some(question));
                None
            }
        }
    }

    /// Tries to connect at `place`. Dropped, it leaves no connection behind.
    pub(super) fn try_at(&self, place: Place) -> Attempt<W> {
        let world = self.world.clone();
        let options = Options { predecessor: self.predecessor.get(), ..self.options.clone() };
        let epoch = self.epochs.get() + 1;
        Box::pin(async move { connect(&world, &place, &options, epoch).await })
    }

    /// Takes over the connection made where the volume was `found`, if its blocks are what they were (CLIENT-SESSION-2).
    fn adopt(&self, found: Found, link: Result<Link<W>, Error>) -> Result<Link<W>, NoLink> {
        let Found { place, is_served } = found;
        let link = link.and_then(|link| self.with_same_format(link));
        let link = link.map_err(|error| NoLink::Failed { error, is_served })?;
        self.epochs.set(link.epoch);
        self.place.set(place);
        Ok(link)
    }
}

impl<W: World> Session<W> {
    fn with_same_format(&self, link: Link<W>) -> Result<Link<W>, Error> {
        let (opened, volume) = (self.properties.get(), &link.volume);
        let format = (volume.block_size(), volume.metadata_size());
        if format == (opened.block_size, opened.metadata_size) {
            return Ok(link);
        }
        Err(Error::Request(client::Error::FormatChanged { nsid: volume.nsid() }))
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. })
}

/// Returns true if the cluster knows the volume and reports that it is not served.
fn is_away(answer: &Result<Found, Error>) -> bool {
    match answer {
        Ok(found) => !found.is_served,
        Err(Error::Api(error)) => matches!(&**error,
            ApiError::Refused(problem) if problem.code == ProblemCode::DeviceAway),
        Err(_) => false,
    }
}
