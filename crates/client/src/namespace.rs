//! The namespaces in use: what each was when it was opened, and whether it still is that.
//!
//! - NAMESPACE-1: the format of a namespace, which is the size of its blocks and of their metadata, is the one with which
//!   it was opened for as long as it is in use: requests count in it.
//! - NAMESPACE-2: nothing is sent to a namespace that has another format, neither for the first time nor again: a request
//!   would name other blocks than its caller meant. A caller that wants to go on drops the namespace, and opens it again.
//! - NAMESPACE-3: what waits while connections are made again goes out when the new controller has said what the
//!   namespaces are.

use std::cell::Cell;
use std::rc::Rc;

use io_traits::{Buffer, World};
use nvme_initiator::NamespaceShape;
use nvme_wire::Status;
use nvme_wire::identify::{Cns, IdentifyNamespace};

use crate::client::Inner;
use crate::{Error, admin};

/// A namespace in use.
pub(crate) struct Namespace {
    shape: Cell<NamespaceShape>,
    has_other_format: Cell<bool>,
}

impl Namespace {
    fn new(shape: NamespaceShape) -> Self {
        Self { shape: Cell::new(shape), has_other_format: Cell::new(false) }
    }

    /// Returns the format with which it was opened (NAMESPACE-1).
    pub(crate) fn shape(&self) -> NamespaceShape {
        self.shape.get()
    }

    /// Why nothing may be sent to it, if that is so (NAMESPACE-2).
    pub(crate) fn refusal(&self) -> Option<Error> {
        let nsid = self.shape.get().nsid;
        self.has_other_format.get().then_some(Error::FormatChanged { nsid })
    }
}

impl<W: World> Inner<W> {
    /// Asks again for the shape of every namespace in use.
    pub(crate) async fn refresh_namespaces(&self) {
        for nsid in self.namespaces_in_use() {
            let shape = self.identify_namespace(nsid).await;
            // Other errors do not matter here: requests will get them.
            let _ = self.take_over(nsid, shape);
        }
    }

    /// Asks a controller that is being connected for the shape of every namespace in use (NAMESPACE-3).
    pub(crate) async fn look_at_namespaces(&self) -> Result<(), Error> {
        for nsid in self.namespaces_in_use() {
            let identify = admin::identify(Cns::NAMESPACE, nsid);
            let identified = self.admin.run_first(self.world.now(), identify).await;
            let shape = identified.and_then(|it| self.shape_of(nsid, it.buffer.as_ref()));
            match self.take_over(nsid, shape) {
                // Of one that is gone, too, requests hear from the target.
                Err(Error::NoNamespace { .. } | Error::FormatChanged { .. }) => {}
                Err(Error::Target { status, .. })
                    if status.code() == Status::INVALID_NAMESPACE_OR_FORMAT => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Takes over what became of a namespace in use.
    fn take_over(&self, nsid: u32, shape: Result<NamespaceShape, Error>) -> Result<(), Error> {
        match shape {
            Ok(shape) => self.take_in(shape).map(drop),
            // It is none any more that could have been opened.
            Err(Error::Capability(_)) => {
                if let Some(namespace) = self.namespaces.borrow().get(&nsid) {
                    namespace.has_other_format.set(true);
                }
                Err(Error::FormatChanged { nsid })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes over how large a namespace is now (NAMESPACE-1).
    pub(crate) fn take_in(&self, shape: NamespaceShape) -> Result<Rc<Namespace>, Error> {
        let mut namespaces = self.namespaces.borrow_mut();
        // Those whose volumes are gone: a target can name a new one each time.
        namespaces.retain(|_, namespace| Rc::strong_count(namespace) > 1);
        let new = || Rc::new(Namespace::new(shape));
        let namespace = namespaces.entry(shape.nsid).or_insert_with(new);
        let format = |shape: NamespaceShape| (shape.block_bytes, shape.metadata_bytes);
        if format(namespace.shape()) != format(shape) {
            namespace.has_other_format.set(true);
        }
        if let Some(refusal) = namespace.refusal() {
            return Err(refusal);
        }
        if namespace.shape.replace(shape) != shape {
            self.resized.notify_all();
        }
        Ok(namespace.clone())
    }

    fn namespaces_in_use(&self) -> Vec<u32> {
        self.namespaces.borrow().keys().copied().collect()
    }

    pub(crate) async fn identify_namespace(&self, nsid: u32) -> Result<NamespaceShape, Error> {
        let command = admin::identify(Cns::NAMESPACE, nsid);
        let buffer = self.admin.run(&self.world, command).await?.buffer;
        self.shape_of(nsid, buffer.as_ref())
    }

    /// Returns the shape that Identify reported for namespace `nsid`.
    fn shape_of(&self, nsid: u32, buffer: Option<&Buffer>) -> Result<NamespaceShape, Error> {
        let limits = self.limits.get().ok_or(Error::Closed)?;
        let identify: &IdentifyNamespace = admin::structure(buffer);
        if identify.nsze.get() == 0 && identify.ncap.get() == 0 {
            return Err(Error::NoNamespace { nsid });
        }
        Ok(NamespaceShape::new(nsid, identify, &limits)?)
    }

    /// Namespace Utilization of namespace `nsid`.
    pub(crate) async fn namespace_utilization(&self, nsid: u32) -> Result<u64, Error> {
        let command = admin::identify(Cns::NAMESPACE, nsid);
        let buffer = self.admin.run(&self.world, command).await?.buffer;
        let identify: &IdentifyNamespace = admin::structure(buffer.as_ref());
        Ok(identify.nuse.get())
    }
}
