//! One attempt to find a volume again: at its old place and, at the same time, where the cluster says.
//!
//! - K1: who answers first is believed. An API that hangs holds up nothing, and an old place that hangs does
//!   not hold up a new one.
//! - K2: a volume has one question under way at a time, on a thread of its own, and each API has
//!   [`ANSWER_TIMEOUT`] to answer it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration as StdDuration;

use io_traits::{Clock, Spawn};
use local_sync::oneshot;
use reactor::{Receiver, mailbox};
use units::Duration;

use super::{Link, Locator, Session, connect};
use crate::Error;
use crate::directory::{Directory, Place};

/// How long an API may take. One that takes longer is passed over for the next.
const ANSWER_TIMEOUT: StdDuration = StdDuration::from_secs(5);
/// How long an attempt waits for the answer when the volume is not at its old place. The next attempt finds
/// the same question under way.
const PATIENCE: Duration = Duration::from_secs(2);

/// A question to the cluster: where the volume is.
pub(super) struct Question(Receiver<Result<Place, Error>>);

impl Question {
    fn ask(directory: Arc<Directory>, volume: String) -> Result<Self, Error> {
        let (answer, answered) = mailbox();
        let asked =
            std::thread::Builder::new().name("farflash-locate".to_owned()).spawn(move || {
                // The one who asked may have gone.
                let _ = answer.send(directory.locate(&volume, Some(ANSWER_TIMEOUT)));
            });
        asked.map(|_| Self(answered)).map_err(|_| Error::Stopped)
    }

    async fn answer(&mut self) -> Result<Place, Error> {
        self.0.recv().await.unwrap_or(Err(Error::Stopped))
    }
}

impl Session {
    /// One attempt.
    pub(super) async fn connect_again(&self) -> Result<Link, Error> {
        let old = self.place.get();
        let Locator::Cluster(directory, id) = &self.locator else {
            return self.adopt(old, self.try_at(old).await);
        };
        let under_way = self.question.take();
        let asked = under_way.map_or_else(|| Question::ask(directory.clone(), id.clone()), Ok);
        let Ok(mut question) = asked else {
            return self.adopt(old, self.try_at(old).await);
        };
        // K1
        let mut at_old = pin!(self.try_at(old));
        let answer = match either(&mut at_old, question.answer()).await {
            Either::First(Err(error)) => {
                let patience = self.world.sleep_until(self.world.now() + PATIENCE);
                match either(question.answer(), patience).await {
                    Either::First(Ok(place)) if place == old => return Err(error),
                    Either::First(Err(answer)) if !is_not_found(&answer) => return Err(error),
                    Either::First(answer) => answer,
                    Either::Second(()) => {
                        self.question.replace(Some(question));
                        return Err(error);
                    }
                }
            }
            Either::First(link) => return self.adopt(old, link),
            Either::Second(answer) => answer,
        };
        match answer {
            Ok(place) if place != old => self.adopt(place, self.try_at(place).await),
            Err(error) if is_not_found(&error) => Err(error),
            // It is where it was, or nobody knows.
            _ => self.adopt(old, at_old.await),
        }
    }

    /// Tries to connect at `place`, as a task of its own: dropped, a connection that comes about all the
    /// same is closed in order.
    fn try_at(&self, place: Place) -> impl Future<Output = Result<Link, Error>> + use<> {
        let (sender, receiver) = oneshot();
        let (world, options) = (self.world.clone(), self.options.clone());
        let epoch = self.epochs.get() + 1;
        self.world.spawn(async move {
            sender.send(connect(&world, &place, &options, epoch).await);
        });
        async move { receiver.await.unwrap_or(Err(Error::Stopped)) }
    }

    /// Takes over the connection made at `place`.
    fn adopt(&self, place: Place, link: Result<Link, Error>) -> Result<Link, Error> {
        let link = link?;
        self.epochs.set(link.epoch);
        self.place.set(place);
        Ok(link)
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. })
}

enum Either<A, B> {
    First(A),
    Second(B),
}

/// The outcome of whichever is done first.
async fn either<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Either<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Either::First(value)),
        Poll::Pending => second.as_mut().poll(context).map(Either::Second),
    })
    .await
}
