//! Assignment of CPUs to server and client.

use std::sync::LazyLock;

/// The CPUs that this process may use. Looked up once, before any thread is bound to one.
static ALLOWED: LazyLock<Vec<usize>> = LazyLock::new(reactor::allowed_cpus);

/// The server's: the first.
pub(crate) fn server() -> usize {
    ALLOWED.first().copied().unwrap_or(0)
}

/// The client's: the second, or the same one if there is no other.
pub(crate) fn client() -> usize {
    ALLOWED.get(1).copied().unwrap_or_else(server)
}
