//! Properties that a model has for all parameters.

use ssd_model::{Load, Model, Params, Pattern, Preset, closed_loop};
use units::{Duration, Instant, Pba, PbaRange};

const BLOCKS: u64 = 1 << 20;

fn model(params: &Params, seed: u64) -> Model {
    Model::new(params, BLOCKS, seed).expect("a sound description")
}

/// Multiplicative congruence, so that the test has its own chance.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// 50 000 requests of every kind and many sizes, at instants that sometimes leave the drive idle.
fn trace(seed: u64, params: &Params) -> Vec<Instant> {
    let mut model = model(params, seed);
    let (mut state, mut now) = (seed, Instant(0));
    let mut done = Vec::new();
    for _ in 0..50_000 {
        let gap = if next(&mut state).is_multiple_of(1000) {
            200_000_000
        } else {
            next(&mut state) % 30_000
        };
        now = now + Duration::from_nanos(gap);
        let range = PbaRange::new(Pba(next(&mut state) % BLOCKS), 1 + next(&mut state) % 40);
        let at = match next(&mut state) % 20 {
            0 => model.flush(now),
            1 => model.discard(now, range),
            2..10 => model.write(now, range),
            _ => model.read(now, range),
        };
        assert!(at > now, "a request takes time");
        done.push(at);
    }
    done
}

/// SSD-1.
#[test]
fn equal_seeds_give_equal_answers() {
    for preset in Preset::ALL {
        for volatile_buffer in [false, true] {
            let params = Params { volatile_buffer, ..preset.params() };
            assert_eq!(trace(5, &params), trace(5, &params));
            assert_ne!(trace(5, &params), trace(6, &params));
        }
    }
}

#[test]
fn a_lone_write_is_absorbed_and_a_burst_beyond_the_buffer_is_not() {
    let params = Params { tail_share: 0.0, pause_every_s: 0.0, ..Preset::P3700.params() };
    let mut model = model(&params, 1);
    let buffer = u64::from(params.units * params.buffer_programs * params.program_blocks);
    let mut latencies = Vec::new();
    for n in 0..2 * buffer {
        let done = model.write(Instant(0), PbaRange::new(Pba(n * 7 % BLOCKS), 1));
        latencies.push(done.since(Instant(0)));
    }
    assert_eq!(latencies[0], Duration::from_micros(15));
    // Until the buffer is full, only the controller's rate counts.
    let half = (buffer / 2) as usize;
    assert!(latencies[half] < Duration::from_millis(5), "{:?}", latencies[half]);
    // As many again wait for programs and their collection: about the steady rate.
    let last = latencies[latencies.len() - 1].as_secs_f64();
    let expected = buffer as f64 / 100e3;
    assert!((0.7..1.5).contains(&(last / expected)), "{last} s beside {expected} s");
}

#[test]
fn a_flush_stores_a_volatile_buffer_and_costs_nothing_otherwise() {
    let quiet = Params { tail_share: 0.0, pause_every_s: 0.0, ..Preset::P3700.params() };
    let flush_ns = |volatile_buffer| {
        let params = Params { volatile_buffer, ..quiet.clone() };
        let mut model = model(&params, 1);
        let written = model.write(Instant(0), PbaRange::new(Pba(0), 1));
        model.flush(written).since(written)
    };
    assert_eq!(flush_ns(false), Duration::from_micros(10));
    assert!(flush_ns(true) > Duration::from_micros(500), "{:?}", flush_ns(true));
}

/// SSD-3: with reads without end on all units, writes still get their turn, and the reverse.
#[test]
fn neither_kind_starves() {
    for read_share in [0.98, 0.02] {
        let mut model = model(&Preset::P3700.params(), 3);
        let load = Load {
            depth: 2000,
            read_share,
            request_blocks: 1,
            blocks: BLOCKS,
            pattern: Pattern::Random,
            seed: 4,
        };
        let second = Duration::from_secs(1);
        let seen = closed_loop(&mut model, load, Instant(0), second, second);
        assert!(seen.reads.count() > 1000 && seen.writes.count() > 1000);
        assert!(seen.reads.max() < Duration::from_millis(200), "{:?}", seen.reads.max());
        assert!(seen.writes.max() < Duration::from_millis(200), "{:?}", seen.writes.max());
    }
}

#[test]
fn sequential_writing_escapes_collection_after_a_while() {
    let params = Params { history_gib: 0.5, ..Preset::M2960.params() };
    let mut model = model(&params, 3);
    let before = model.write_amplification();
    let load = Load {
        depth: 8,
        read_share: 0.0,
        request_blocks: 32,
        blocks: BLOCKS,
        pattern: Pattern::Sequential,
        seed: 4,
    };
    closed_loop(&mut model, load, Instant(0), Duration::ZERO, Duration::from_secs(6));
    let after = model.write_amplification();
    assert!(before > 5.0 && after < 1.2, "{before} then {after}");
}
