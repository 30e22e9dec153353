//! The wire, held to the specification by peers that share no code with the product (`wire_oracle`), and broken on
//! purpose to see that this is noticed.
//!
//! The same hosts that `nvme-target` is tested with speak to the whole data plane with a real engine in a simulated
//! world. `FARFLASH_TEST_SCALE` multiplies the seeds.

#[path = "../../../client/tests/wire.rs"]
mod client_wire;
#[path = "../../../nvme-target/tests/driver/mod.rs"]
mod driver;
#[path = "../../../nvme-target/tests/exchange/mod.rs"]
mod exchange;
mod host_mutants;
mod mutants;
mod plane;

/// So many seeds, or more.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let scale = std::env::var("FARFLASH_TEST_SCALE").ok().and_then(|text| text.parse().ok());
    0..count * scale.unwrap_or(1_u64)
}
