//! Tells if a failed request was ever sent: a connection, TLS included, comes before it.

use ureq::unversioned::transport::{ConnectionDetails, Connector, DefaultConnector, Transport};
use ureq::{Error, Timeout};

/// Connects as usual, and marks what fails meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Connecting(DefaultConnector);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct NoConnection(Error);

impl Connector for Connecting {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        self.0.connect(details, chained).map_err(not_begun)
    }
}

/// Marks an error of a request of which nothing was sent.
pub(crate) fn not_begun(error: Error) -> Error {
    Error::Other(Box::new(NoConnection(error)))
}

/// The error of a request of which nothing was sent, or else the one of a request that may have arrived. What is not
/// known to come before the request counts as coming after it.
pub(crate) fn before_the_request(error: Error) -> Result<Error, Error> {
    match error {
        Error::Other(other) => match other.downcast::<NoConnection>() {
            Ok(no_connection) => Ok(no_connection.0),
            Err(other) => Err(Error::Other(other)),
        },
        Error::HostNotFound
        | Error::ConnectionFailed
        | Error::Timeout(Timeout::Resolve | Timeout::Connect) => Ok(error),
        _ => Err(error),
    }
}
