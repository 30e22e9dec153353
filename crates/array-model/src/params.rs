//! Times and rates of the model. `docs/reproduce.md` has the same list with what follows from each.

use ssd_model::Preset;

/// A kind of background work: tasks that wake, run for a while, and sleep again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Bursts in a second on the whole machine.
    pub per_second: f64,
    /// Mean length, µs; lengths are spread exponentially.
    pub mean_us: f64,
}

/// Parameters of host and array. Times are in nanoseconds unless the name says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// The drives without their housekeeping.
    pub drive: ssd_model::Params,
    /// The longest extra delay of each drive lies in this range, µs: drives of one kind differ.
    pub tail_max_us: (f64, f64),
    /// Time from one housekeeping to the next, s.
    pub housekeeping_every_s: f64,
    /// Pauses of one housekeeping: the data is updated, then saved.
    pub housekeeping_pauses: u64,
    /// Time between them, ms.
    pub housekeeping_gap_ms: f64,
    /// Length of a pause, µs.
    pub housekeeping_pause_us: f64,
    /// Drives were switched on within this time, s, and keep that distance.
    pub housekeeping_spread_s: f64,
    /// Latency of the PCIe switches.
    pub fabric: u64,
    /// Transfer of a block over the uplink that all drives share.
    pub uplink: u64,
    /// An interrupt's way to the socket that the array is not connected to.
    pub far_interrupt: u64,
    /// Handler of a drive's interrupt, the completion of the block layer included.
    pub handler: u64,
    /// Wake-up of a thread on another CPU of the socket: interprocessor interrupt, and lines that its cache lacks.
    pub wake_near: u64,
    /// The same across sockets.
    pub wake_far: u64,
    /// Switch to the thread.
    pub switch: u64,
    /// From there to the end of the request as the thread sees it.
    pub reap: u64,
    /// From there to the next request.
    pub submit: u64,
    /// Times on a CPU grow by this factor while the other hardware thread of the core is busy.
    pub sibling_factor: f64,
    /// Length of a timer tick, its softirqs included.
    pub tick: u64,
    /// Time between ticks, and on isolated CPUs.
    pub tick_every: [u64; 2],
    /// Share of the active interrupts that the balancer moved, each to any CPU.
    pub moved_interrupts: f64,
    /// Background work of the system.
    pub bursts: Vec<Burst>,
    /// Share of a background task's time in sections of the kernel that cannot be preempted.
    pub unpreemptible: f64,
    /// Mean rest of such a section, µs, spread exponentially, and its bound.
    pub section_us: (f64, f64),
}

impl Default for Params {
    fn default() -> Self {
        let preset = Preset::M2960.params();
        let (handler, switch, reap) = (1_500, 1_000, 700);
        // The preset's 25 µs are what a host sees; its own part is modelled here by itself.
        let host_us = (handler + switch + reap) as f64 / 1e3;
        Self {
            drive: ssd_model::Params {
                read_overhead_us: preset.read_overhead_us - host_us,
                pause_every_s: 0.0,
                ..preset
            },
            tail_max_us: (45.0, 75.0),
            housekeeping_every_s: 54.0,
            housekeeping_pauses: 2,
            housekeeping_gap_ms: 5.0,
            housekeeping_pause_us: 575.0,
            housekeeping_spread_s: 1.0,
            fabric: 5_000,
            uplink: 4096 / 16,
            far_interrupt: 300,
            handler,
            wake_near: 3_000,
            wake_far: 6_000,
            switch,
            reap,
            submit: 1_600,
            sibling_factor: 1.3,
            tick: 2_500,
            tick_every: [1_000_000, 1_000_000_000],
            moved_interrupts: 0.5,
            bursts: vec![
                Burst { per_second: 8.7, mean_us: 1_280.0 },
                Burst { per_second: 60.0, mean_us: 40.0 },
            ],
            unpreemptible: 0.3,
            section_us: (20.0, 300.0),
        }
    }
}
