//! CPU costs of the product, from what its processes used while they served a known number of requests.

use report::{Align, Table};

use crate::CpuCosts;

/// Bytes of the reads by which a request's cost and that of its bytes are told apart.
pub const READ_BYTES: [u64; 2] = [4 << 10, 64 << 10];

/// CPU time that was used for a number of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// CPU time.
    pub cpu_ns: f64,
    /// Requests.
    pub requests: f64,
}

impl Used {
    /// Nanoseconds for each of the requests, of which there are some.
    fn each(&self, requests: &'static str) -> Result<f64, NothingServed> {
        if self.requests > 0.0 {
            Ok(self.cpu_ns / self.requests)
        } else {
            Err(NothingServed(requests))
        }
    }
}

/// No cost follows: none of these requests was served in the measured time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("no {0} was served in the measured time")]
pub struct NothingServed(&'static str);

/// Measurements from which costs follow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Samples {
    /// The datastore, by gets with local Flash.
    pub gets: Used,
    /// The datastore, by sets with local Flash.
    pub sets: Used,
    /// The Flash server, by reads of each of [`READ_BYTES`].
    pub server: [Used; 2],
    /// A reader of a local file, and its operating system.
    pub local: Used,
    /// A reader of an attached file, and the process that serves the file.
    pub attached: Used,
}

impl Samples {
    /// The costs.
    ///
    /// # Errors
    /// Requests of some kind were not served at all.
    pub fn costs(&self) -> Result<CpuCosts, NothingServed> {
        let small = self.server[0].each("read of a volume")?;
        let large = self.server[1].each("large read of a volume")?;
        let further = (READ_BYTES[1] - READ_BYTES[0]) as f64;
        let local = self.local.each("read of a local file")?;
        Ok(CpuCosts {
            get_ns: whole(self.gets.each("get")?),
            set_ns: whole(self.sets.each("set")?),
            // The cost of a local read is part of a get's.
            initiator_ns: whole(self.attached.each("read of an attached file")? - local),
            target_ns: whole(small),
            ns_per_byte: ((large - small) / further).max(0.0),
        })
    }
}

/// Nothing is free, and what noise makes negative is least.
fn whole(ns: f64) -> u64 {
    ns.max(1.0) as u64
}

/// Costs as they are stated and as they were measured.
#[must_use]
pub fn table(measured: &CpuCosts) -> Table {
    let mut table = Table::new(&[
        ("CPU time", Align::Left),
        ("stated", Align::Right),
        ("measured here", Align::Right),
    ]);
    let stated = CpuCosts::STATED;
    let us = |ns: u64| format!("{:.1} µs", ns as f64 / 1e3);
    let rows = [
        ("a get at the datastore", stated.get_ns, measured.get_ns),
        ("a set at the datastore, with flushes and compactions", stated.set_ns, measured.set_ns),
        ("a remote read of 4 KiB, at the datastore", stated.initiator_ns, measured.initiator_ns),
        ("a remote read of 4 KiB, at the Flash server", stated.target_ns, measured.target_ns),
    ];
    for (what, stated, measured) in rows {
        table.row([what.to_owned(), us(stated), us(measured)]);
    }
    let per_kib = |costs: &CpuCosts| format!("{:.2} µs", costs.ns_per_byte * 1024.0 / 1e3);
    let further = "each further KiB of it, on either side".to_owned();
    table.row([further, per_kib(&stated), per_kib(measured)]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu_us: f64, requests: f64) -> Used {
        Used { cpu_ns: cpu_us * 1e3, requests }
    }

    /// Each cost is that of one request; the attached file's is what it adds to a local one.
    #[test]
    fn costs_follow_from_times_and_requests() {
        let samples = Samples {
            gets: used(3_000.0, 100.0),
            sets: used(500.0, 25.0),
            server: [used(100.0, 20.0), used(65.0, 1.0)],
            local: used(70.0, 10.0),
            attached: used(400.0, 20.0),
        };
        let costs = samples.costs().expect("all was served");
        let CpuCosts { get_ns, set_ns, initiator_ns, target_ns, ns_per_byte } = costs;
        assert_eq!((get_ns, set_ns, initiator_ns, target_ns), (30_000, 20_000, 13_000, 5_000));
        assert!((ns_per_byte - 60_000.0 / 61_440.0).abs() < 1e-9, "{ns_per_byte}");
        assert!(table(&costs).to_text().contains("13.0 µs"), "{}", table(&costs).to_text());

        let noisy = Samples { local: used(900.0, 10.0), ..samples };
        assert_eq!(noisy.costs().map(|costs| costs.initiator_ns), Ok(1));
        let none = Samples { sets: Used::default(), ..samples };
        assert_eq!(none.costs(), Err(NothingServed("set")));
    }
}
