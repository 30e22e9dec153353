//! Tells the user that an answer is still awaited, so that silence is not taken for a fault.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::Duration;

use ureq::http::{Method, Request, Response};
use ureq::middleware::{Middleware, MiddlewareNext};
use ureq::{Body, Error, SendBody};

/// An answer that comes sooner is not worth a word.
const SAID_AFTER: Duration = Duration::from_secs(2);

/// Says once, of all that a client asks, that an answer is awaited; whether a change was asked for is its argument.
pub(crate) struct Awaited<F> {
    say: Arc<F>,
    said: Arc<Once>,
}

impl<F: Fn(bool) + Send + Sync + 'static> Awaited<F> {
    pub(crate) fn new(say: F) -> Self {
        Self { say: Arc::new(say), said: Arc::new(Once::new()) }
    }
}

impl<F: Fn(bool) + Send + Sync + 'static> Middleware for Awaited<F> {
    fn handle(
        &self,
        request: Request<SendBody<'_>>,
        next: MiddlewareNext<'_>,
    ) -> Result<Response<Body>, Error> {
        let is_change = request.method() != Method::GET;
        let (say, said) = (self.say.clone(), self.said.clone());
        let (answered, answer) = channel::<()>();
        // Ends with the question: the channel closes. Where no thread can be had, nothing is said.
        let _ = thread::Builder::new().name("awaited".to_owned()).spawn(move || {
            if answer.recv_timeout(SAID_AFTER) == Err(RecvTimeoutError::Timeout) {
                said.call_once(|| say(is_change));
            }
        });
        let result = next.handle(request);
        drop(answered);
        result
    }
}
