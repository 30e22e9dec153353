//! The API over HTTP, from outside.

#![allow(missing_docs, unreachable_pub)]

mod support;

mod api;
mod asking;
mod audit;
mod crowd;
mod encrypted;
mod hostile;
mod recordings;
mod renewal;
