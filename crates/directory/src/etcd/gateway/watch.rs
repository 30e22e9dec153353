//! Being told of changes: one long answer, a line of JSON for each event.

use cluster::{KeyValue, WatchEvent};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ANSWER_BYTES_MAX, Gateway, GatewayError, Streamed, WireKeyValue, after_prefix, encode,
};
use crate::http::{HttpError, HttpStream};

const PATH: &str = "/v3/watch";
/// Longest answer that is read by which a watch is refused.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// One message of a watch.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WatchAnswer {
    #[serde(default)]
    pub(crate) events: Vec<WireEvent>,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WireEvent {
    #[serde(default, rename = "type")]
    kind: EventKind,
    #[serde(with = "WireKeyValue")]
    kv: KeyValue,
}

#[derive(Debug, Default, Deserialize, Eq, PartialEq)]
enum EventKind {
    #[default]
    #[serde(rename = "PUT")]
    Put,
    #[serde(rename = "DELETE")]
    Delete,
}

impl From<WireEvent> for WatchEvent {
    fn from(event: WireEvent) -> Self {
        Self { kv: event.kv, is_deleted: event.kind == EventKind::Delete }
    }
}

/// Changes as they come.
pub(crate) struct Watch {
    gateway: Gateway,
    stream: HttpStream,
    buffer: Vec<u8>,
    /// The first message, until it is asked for.
    first: Option<WatchAnswer>,
}

impl Watch {
    /// The next changes. An error if no more can come: then the caller must read everything again.
    ///
    /// Cancel safe: a part that has arrived stays for the next call.
    pub(crate) async fn next(&mut self) -> Result<WatchAnswer, GatewayError> {
        let answer = match self.first.take() {
            Some(first) => first,
            None => self.read().await?,
        };
        if answer.canceled {
            return Err(self.ended(format!("the watch ended: {}", answer.cancel_reason)));
        }
        Ok(answer)
    }

    /// Reads etcd's next message.
    async fn read(&mut self) -> Result<WatchAnswer, GatewayError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let answer = self.gateway.decode::<Streamed<WatchAnswer>>(&line)?;
                return self.gateway.streamed(answer);
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(self.ended("an event is too long".to_owned()));
            }
            let Some(bytes) = self.stream.next().await? else {
                return Err(self.ended("the watch ended".to_owned()));
            };
            self.buffer.extend_from_slice(&bytes);
        }
    }

    fn ended(&self, message: String) -> GatewayError {
        GatewayError::Refused { authority: self.gateway.authority.clone(), message }
    }

    /// Waits until etcd says that it watches, or why it does not.
    async fn begin(&mut self) -> Result<(), GatewayError> {
        let status = self.stream.status;
        if !status.is_success() {
            let mut said = Vec::new();
            while said.len() < REFUSAL_BYTES_MAX
                && let Some(bytes) = self.stream.next().await?
            {
                said.extend_from_slice(&bytes);
            }
            return Err(self.gateway.refusal(PATH, status, &said));
        }
        let first = self.read().await?;
        if first.canceled {
            // etcd refuses a watch with a status of success.
            let (authority, message) = (self.gateway.authority.clone(), first.cancel_reason);
            return Err(GatewayError::Stale { authority, message });
        }
        self.first = Some(first);
        Ok(())
    }
}

impl Gateway {
    /// Watches keys with `prefix` from `revision` on. The request is repeated once if the token is no
    /// longer valid.
    pub(crate) async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch, GatewayError> {
        let question = json!({"create_request": {
            "key": encode(prefix.as_bytes()), "range_end": encode(&after_prefix(prefix)),
            "start_revision": revision.to_string(),
        }});
        self.have_token().await?;
        let watch = self.watch_once(&question).await;
        if !self.wants_token(&watch) {
            return watch;
        }
        self.authenticate().await?;
        self.watch_once(&question).await
    }

    async fn watch_once(&self, question: &Value) -> Result<Watch, GatewayError> {
        let Self { access, authority, timeout, .. } = self.clone();
        let secured = async move |stream| access.secured(&authority, stream).await;
        let stream = self.request(PATH, question).stream_by(timeout, secured).await?;
        let mut watch = Watch { gateway: self.clone(), stream, buffer: Vec::new(), first: None };
        let begun = tokio::time::timeout(timeout, watch.begin()).await;
        begun.unwrap_or_else(|_| {
            let reason = format!("no watch within {} s", timeout.as_secs_f32());
            Err(HttpError::NoAnswer { authority: self.authority.clone(), reason }.into())
        })?;
        Ok(watch)
    }
}
