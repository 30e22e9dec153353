//! The data plane of a core, held to what it promises: one program, so that it is compiled once.

mod administering;
mod authenticating;
mod beside;
mod closing;
mod crowding;
mod disabling;
mod discovering;
mod exchanging;
mod fencing;
mod hanging;
mod hostile;
mod metadata;
mod pressure;
mod reserving;
mod restricting;
mod returning;
mod serving;
mod sharing;
mod support;
mod suspending;
mod swapping;
mod violations;
