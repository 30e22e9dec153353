//! The engine, held to what it promises: one program, so that the engine is compiled once.

mod basic;
mod cluster;
mod common;
mod crash;
mod discard;
mod faults;
mod findings;
mod forge;
mod fsck;
mod heal;
mod images;
mod losses;
mod metadata;
mod owners;
mod paging;
mod pauses;
mod ranges;
mod refused;
mod reopen;
mod reopened;
mod runs;
mod scrub;
mod sharing;
mod space;
mod superblocks;
mod terms;
