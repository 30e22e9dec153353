//! Long answers, compressed for clients that take them so.
//!
//! - COMPRESS-1: one answer at a time is compressed, on a thread of its own: it takes no more than one processor, and other
//!   requests are answered meanwhile.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Semaphore;

/// Below this length nothing is gained.
const BYTES_MIN: usize = 1024;

static TURN: Semaphore = Semaphore::const_new(1);

/// An answer of this text and type, compressed if `sent` by the client says that it may be, and it is long.
pub(crate) async fn answer(sent: &HeaderMap, kind: &'static str, text: String) -> Response {
    let kind = HeaderValue::from_static(kind);
    let varies = (header::VARY, HeaderValue::from_static("accept-encoding"));
    let whole = |text: Bytes| {
        ([(header::CONTENT_TYPE, kind.clone()), varies.clone()], Body::from(text)).into_response()
    };
    let text = Bytes::from(text);
    if text.len() < BYTES_MIN || !takes_gzip(sent) {
        return whole(text);
    }
    // It is never closed.
    let Ok(turn) = TURN.acquire().await else { return whole(text) };
    let given = text.clone();
    let packed = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        pack(&given)
    });
    match packed.await {
        Ok(Ok(packed)) => {
            let mut response = whole(packed.into());
            let gzip = HeaderValue::from_static("gzip");
            response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
            response
        }
        _ => whole(text),
    }
}

/// Speed counts: lines of metrics are much alike.
fn pack(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// Returns whether `Accept-Encoding` names gzip, with another weight than 0 (RFC 9110, 12.5.3).
fn takes_gzip(sent: &HeaderMap) -> bool {
    let values = sent.get_all(header::ACCEPT_ENCODING).iter();
    let codings = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let mut any = false;
    for coding in codings {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        let is_taken = weight.is_none_or(|weight| weight.parse::<f32>().is_ok_and(|it| it > 0.0));
        match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => return is_taken,
            "*" => any = is_taken,
            _ => {}
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_takes_gzip_gets_it() {
        for (sent, takes) in [
            ("", false),
            ("gzip", true),
            ("identity", false),
            ("br, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=0.000, *", false),
            ("*", true),
            ("*;q=0", false),
            ("gzip;q=x", false),
            ("deflate, x-gzip", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(sent));
            assert_eq!(takes_gzip(&headers), takes, "{sent}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
