//! Being told of changes: one long answer, a line of JSON for each event.

use serde::Deserialize;
use serde_json::json;

use super::{
    ANSWER_BYTES_MAX, Gateway, GatewayError, KeyValue, Streamed, after_prefix, encode, encrypt,
};
use crate::http::HttpStream;

/// What a watch tells.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WatchAnswer {
    #[serde(default)]
    pub(crate) events: Vec<WatchEvent>,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WatchEvent {
    #[serde(default, rename = "type")]
    kind: EventKind,
    pub(crate) kv: KeyValue,
}

#[derive(Debug, Default, Deserialize, Eq, PartialEq)]
enum EventKind {
    #[default]
    #[serde(rename = "PUT")]
    Put,
    #[serde(rename = "DELETE")]
    Delete,
}

impl WatchEvent {
    /// The value that the key has now.
    pub(crate) fn put(&self) -> Option<&[u8]> {
        (self.kind == EventKind::Put).then_some(&self.kv.value)
    }
}

/// Changes as they come.
pub(crate) struct Watch {
    gateway: Gateway,
    stream: HttpStream,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next changes. An error if no more can come: what follows must be read anew.
    ///
    /// Cancel safe: what has come in part stays for the next call.
    pub(crate) async fn next(&mut self) -> Result<WatchAnswer, GatewayError> {
        let authority = self.gateway.authority.clone();
        let ended = |message: &str| GatewayError::Refused {
            authority: authority.clone(),
            message: message.to_owned(),
        };
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let answer = self.gateway.decode::<Streamed<WatchAnswer>>(&line)?;
                let answer = self.gateway.streamed(answer)?;
                if answer.canceled {
                    return Err(ended(&format!("the watch ended: {}", answer.cancel_reason)));
                }
                return Ok(answer);
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                return Err(ended("an event is too long"));
            }
            let bytes = self.stream.next().await?.ok_or_else(|| ended("the watch ended"))?;
            self.buffer.extend_from_slice(&bytes);
        }
    }
}

impl Gateway {
    /// What happens to keys with `prefix` from `revision` on.
    pub(crate) async fn watch(&self, prefix: &str, revision: i64) -> Result<Watch, GatewayError> {
        let question = json!({"create_request": {
            "key": encode(prefix.as_bytes()), "range_end": encode(&after_prefix(prefix)),
            "start_revision": revision.to_string(),
        }});
        let request = self.request("/v3/watch", &question);
        let stream = match self.access.tls().cloned() {
            None => request.stream_by(self.timeout, async |stream| Ok(stream)).await?,
            Some(tls) => {
                let authority = self.authority.clone();
                let wrap = async move |stream| encrypt(tls, &authority, stream).await;
                request.stream_by(self.timeout, wrap).await?
            }
        };
        if !stream.status.is_success() {
            let what = format!("/v3/watch answers with status {}", stream.status);
            return Err(GatewayError::Foreign { authority: self.authority.clone(), what });
        }
        Ok(Watch { gateway: self.clone(), stream, buffer: Vec::new() })
    }
}
