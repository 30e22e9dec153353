//! Recordings of the requests of volumes, which the volumes' cores make.

use std::time::Duration;

use control::{
    Caller, RecordedKind, RecordedRequest, Recording, RecordingRequest, ServiceError, VolumeKey,
};
use data_core::CoreMessage;
use dataplane::{RecordingCommand, RecordingError, RecordingStatus, RecordingTerms};
use schedule::Direction;
use units::BLOCK_SIZE;
use uuid::Uuid;

use super::directory::Place;
use super::documents::not_found;
use super::state::State;

const _: () = {
    assert!(control::RECORDING_BUFFER_MAX as usize == dataplane::RECORDING_BUFFER_MAX);
    assert!(control::RECORDING_FETCH_MAX == dataplane::RECORDING_FETCH_MAX);
    assert!(control::RECORDING_UNASKED_MAX.as_nanos() == dataplane::UNASKED_MAX.as_nanos());
    // The API's description has these numbers.
    assert!(dataplane::RECORDING_FETCH_MAX == 8192 && dataplane::UNASKED_MAX.as_secs() == 10);
};

impl State {
    /// Begins, fetches or ends a recording of any volume: the API has found that its caller may see the activity of all.
    pub(super) async fn recording(
        &self,
        key: VolumeKey,
        request: RecordingRequest,
    ) -> Result<Recording, ServiceError> {
        let Place { id: volume, core, .. } =
            self.place(&Caller::Operator("recording".into()), &key)?;
        let command = match request {
            RecordingRequest::Start(start) => RecordingCommand::Start(RecordingTerms {
                id: Uuid::new_v4(),
                length: Duration::from_secs(start.seconds.into()),
                buffer_requests: usize::try_from(start.buffer()).unwrap_or(usize::MAX),
            }),
            RecordingRequest::Fetch { id, first } => RecordingCommand::Fetch { id, first },
            RecordingRequest::End { id } => RecordingCommand::End { id },
        };
        let message = |answer| CoreMessage::Record { volume, command, answer };
        match self.cores[core].ask(message).await? {
            Ok(status) => Ok(document(volume, status)),
            Err(error) => Err(refusal(&key, &error)),
        }
    }
}

fn document(volume: Uuid, status: RecordingStatus) -> Recording {
    let RecordingStatus { terms, is_over, recorded, left_out, others, first, requests } = status;
    Recording {
        id: terms.id,
        volume,
        seconds: u32::try_from(terms.length.as_secs()).unwrap_or(u32::MAX),
        is_over,
        recorded,
        left_out,
        others,
        first,
        requests: requests.iter().map(request_document).collect(),
    }
}

fn request_document(request: &dataplane::RecordedRequest) -> RecordedRequest {
    let block = BLOCK_SIZE as u64;
    RecordedRequest {
        at_ns: request.at_ns,
        kind: match request.direction {
            Direction::Read => RecordedKind::Read,
            Direction::Write => RecordedKind::Write,
        },
        offset_bytes: request.start.0 * block,
        length_bytes: u64::from(request.blocks) * block,
    }
}

fn refusal(key: &VolumeKey, error: &RecordingError) -> ServiceError {
    let volume = key.to_string();
    match error {
        RecordingError::NoVolume => not_found(key),
        RecordingError::Runs { id } => ServiceError::RecordingRuns { volume, id: *id },
        RecordingError::TooMany => {
            ServiceError::TooManyRecordings { max: dataplane::RECORDINGS_MAX }
        }
        RecordingError::NotFound => ServiceError::RecordingNotFound { volume },
        RecordingError::NotThere { .. } => ServiceError::Setting { detail: error.to_string() },
    }
}
