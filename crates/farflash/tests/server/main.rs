//! The program from outside: servers, clusters, hosts, libraries and commands, each test in a process of its own.

#![allow(missing_docs, unreachable_pub)]

#[path = "../../../directory/tests/support/mod.rs"]
mod etcd;
mod support;

mod absent;
mod awaited_answer;
mod awaiting;
mod belonging;
mod bench;
mod cluster;
mod conditions;
mod crash;
mod damage;
mod devices;
mod discovery_networks;
mod drives;
mod fenced;
mod forms;
mod full;
mod grown;
mod hostile;
mod hostile_tenant;
mod idle;
mod libraries;
mod library_cluster;
mod library_examples;
mod library_metadata;
mod library_provisioning;
mod library_recovery;
mod observing;
mod owner;
mod quota_races;
mod reconnecting;
mod refusals;
mod reload;
mod replug;
mod reproduce;
mod restored;
mod rotating;
mod serve;
mod served_meanwhile;
mod sharing;
mod supervised;
mod take_over;
mod tenants;
mod tls_door;
mod tune;
mod two_ways;
mod unfinished;
mod unrecorded;
mod worst_hosts;
