//! The server from outside: a process, sockets, and clients that others wrote.

mod crash;
mod forms;
mod full;
mod limits;
mod memory;
mod model;
mod support;
mod threads;
mod tls;
mod tools;
