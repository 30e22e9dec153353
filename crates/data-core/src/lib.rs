//! A data core of a server: a thread on a CPU of its own, with a front end for each protocol and a shard of each device.
//!
//! The control side starts a core with a [`Seat`], and then sends it [messages](CoreMessage). The whole data plane is
//! compiled here, once, for the machine's sockets and devices; what sends the messages knows none of its types.

mod advertised;
mod front_ends;
mod listening;
mod message;
mod nbd_address;
mod scrub_pace;
mod scrubber;
mod seat;

pub use advertised::{Advertised, ParseAdvertisedError};
pub use front_ends::{Announcement, Place, forget};
pub use listening::{Discovery, not_bound};
pub use message::{
    Answer, CoreMessage, CoreShare, NewWay, Part, Returned, TakeUp, VOLUMES_AT_ONCE,
};
pub use nbd_address::{NbdAddress, ParseNbdAddressError};
pub use scrubber::{ScrubCounts, ScrubReport, Scrubbing};
pub use seat::{Bound, Ending, Returns, Seat, start};
