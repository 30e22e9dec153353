//! Hosts against an etcd in memory: what operators are answered, and what is in etcd then.

mod claims;
mod lab;
mod quotas;
mod sessions;
mod volumes;
