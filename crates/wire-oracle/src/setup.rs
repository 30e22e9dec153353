//! The configuration of a host, and its draws for a connection.

use crate::pdu::Digests;
use crate::{Fault, Rng};

/// Names of a host and of the subsystem that it connects to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Host Identifier.
    pub hostid: [u8; 16],
    /// Host NQN.
    pub hostnqn: String,
    /// NQN of the subsystem.
    pub subnqn: String,
}

/// The queue that a connection becomes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Queue {
    /// The admin queue of a new controller: enables it and identifies it and its namespace.
    Admin,
    /// I/O queue `qid` of controller `cntlid`.
    Io {
        /// Queue Identifier, at least 1.
        qid: u16,
        /// The controller.
        cntlid: u16,
    },
}

/// The known properties of the namespace, and the part of it that may be used.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// Bytes of metadata behind the data of each block of 4096 bytes.
    pub metadata: usize,
    /// Most bytes of in-capsule data on an I/O queue.
    pub in_capsule_max: usize,
    /// Most blocks that a command moves.
    pub transfer_blocks_max: usize,
}

impl Namespace {
    /// Bytes of a block as it is transferred.
    #[must_use]
    pub fn each(&self) -> usize {
        4096 + self.metadata
    }
}

/// The division of a stream into chunks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cut {
    /// Chunks of 1 to 7 bytes.
    Crumbs,
    /// Chunks of 1 byte to a frame of Ethernet.
    Frames,
    /// Chunks of 1 byte to 64 KiB.
    Any,
    /// Chunks of 64 KiB.
    Whole,
}

/// A connection of a host.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The host and the subsystem.
    pub identity: Identity,
    /// As which queue.
    pub queue: Queue,
    /// Digests that the ICReq asks for.
    pub digests: Digests,
    /// HPDA of the ICReq, 0 to 31.
    pub hpda: u8,
    /// MAXR2T of the ICReq, 0's based.
    pub maxr2t: u32,
    /// True if the Connect leaves the flow control of the submission queue on.
    pub flow_control: bool,
    /// SQSIZE of the Connect, 0's based: the most commands that are outstanding at once.
    pub sqsize: u16,
    /// The namespace.
    pub namespace: Namespace,
    /// Commands to draw.
    pub commands: usize,
    /// True if all blocks are read at the end.
    pub sweep: bool,
    /// One in this many data PDUs is damaged; 0 for none. Takes data digests.
    pub damaged_one_in: u64,
    /// A rule that is broken once.
    pub fault: Option<Fault>,
    /// The division of the stream.
    pub cut: Cut,
}

impl Setup {
    /// A connection that becomes `queue`, with everything that the specification leaves to a host drawn by
    /// chance: 12 commands, no damage.
    #[must_use]
    pub fn draw(rng: &mut Rng, identity: &Identity, queue: Queue, namespace: Namespace) -> Self {
        Self {
            identity: identity.clone(),
            queue,
            digests: Digests { header: rng.one_in(2), data: !rng.one_in(3) },
            hpda: if rng.one_in(2) { 0 } else { rng.between(0, 31) as u8 },
            maxr2t: rng.pick(&[0, 1, 15, u32::MAX]),
            flow_control: rng.one_in(2),
            sqsize: rng.between(2, 31) as u16,
            namespace,
            commands: 12,
            sweep: false,
            damaged_one_in: 0,
            fault: None,
            cut: rng.pick(&[Cut::Crumbs, Cut::Frames, Cut::Frames, Cut::Any, Cut::Any, Cut::Whole]),
        }
    }
}
