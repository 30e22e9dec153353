//! Open files that operations keep open.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;

enum Owner {
    ThisCore(OwnedFd),
    Shared(Arc<OwnedFd>),
}

/// An open file. Cheap to clone; closed with the last clone, of which each operation in flight
/// holds one: the kernel never finds another file under the number.
#[derive(Clone)]
pub struct Fd(Rc<Owner>);

impl Fd {
    /// A file that only this core uses.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(Rc::new(Owner::ThisCore(fd)))
    }

    /// This core's hold on a file that other cores use as well. Clones of it touch no memory that
    /// is shared between cores.
    #[must_use]
    pub fn shared(fd: Arc<OwnedFd>) -> Self {
        Self(Rc::new(Owner::Shared(fd)))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &*self.0 {
            Owner::ThisCore(fd) => fd.as_fd(),
            Owner::Shared(fd) => fd.as_fd(),
        }
    }
}
