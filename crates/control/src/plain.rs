//! The answer of an encrypted API to a request without TLS: that the API is encrypted, and nothing else.
//!
//! Clients that meet the alert of a TLS server in place of an answer say no more than that it makes no sense, and cannot
//! know that nothing was done.

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::limits::Limits;
use crate::problem::{Problem, ProblemCode};

/// Returns true if a connection that begins with `byte` is HTTP's: a method begins with a letter, and no
/// record of TLS does.
pub(crate) fn is_http(byte: u8) -> bool {
    byte.is_ascii_alphabetic()
}

/// Refuses everything, and ends the connection.
pub(crate) fn router(limits: Limits) -> Router {
    Router::new().fallback(refuse).layer(DefaultBodyLimit::max(limits.body_bytes_max))
}

/// The body is taken, lest the connection be reset under the answer.
async fn refuse(_: Result<Bytes, axum::extract::rejection::BytesRejection>) -> Response {
    let problem = Problem::new(
        ProblemCode::EncryptionRequired,
        "this API is encrypted, and the request came without TLS: nothing was done",
        "ask by https://, and name the server's certificate (or that of its authority) with --api-ca (or \
         FARFLASH_API_CA); a token that was sent crossed the network as it is: replace it",
    );
    let mut response = problem.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
