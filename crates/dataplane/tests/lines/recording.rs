//! Recordings of requests (RECORDING-1 to RECORDING-4).

use dataplane::{
    Loss, RECORDINGS_MAX, RecordedRequest, RecordingCommand, RecordingError, RecordingStatus,
    RecordingTerms, UNASKED_MAX,
};
use io_traits::Clock;
use schedule::Direction;
use sim::SimWorld;
use test_hosts::lines::Host;
use units::{Duration, Lba, ShardIndex, Slo};
use uuid::Uuid;
use volume::VolumeSpec;

use crate::{BLOCKS, OTHER, SimCore, VOLUME, serve, simulate};

const ID: Uuid = Uuid::from_u128(77);
const LENGTH: Duration = Duration::from_secs(60);

fn start(core: &SimCore, buffer_requests: usize) -> Result<RecordingStatus, RecordingError> {
    let terms = RecordingTerms { id: ID, length: LENGTH, buffer_requests };
    core.recording(VOLUME, RecordingCommand::Start(terms))
}

fn fetch(core: &SimCore, first: u64) -> Result<RecordingStatus, RecordingError> {
    core.recording(VOLUME, RecordingCommand::Fetch { id: ID, first })
}

async fn pass(world: &SimWorld, time: Duration) {
    world.sleep_until(world.now() + time).await;
}

/// Blocks of the requests that are in a recording.
fn places(status: &RecordingStatus) -> Vec<u64> {
    status.requests.iter().map(|request| request.start.0).collect()
}

#[test]
fn a_recording_has_the_time_kind_and_place_of_each_request() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        assert_eq!(host.ask("1 write 0 9 7").await, "1 done");
        let begun = start(&core, 100).expect("none runs");
        assert_eq!((begun.is_over, begun.recorded), (false, 0));
        let started = world.now();
        for (line, direction) in [
            ("2 write 0 3 7", Some(Direction::Write)),
            ("2 flush 0", None),
            ("2 compare 0 4 0", Some(Direction::Read)),
            ("2 swap 0 5 0 9", Some(Direction::Write)),
            ("2 verify 0 6", Some(Direction::Read)),
            ("2 unmap 0 0 8", None),
            ("2 zero 0 4 1", None),
        ] {
            let sent = world.now();
            assert_eq!(host.ask(line).await, "2 done", "{line}");
            let status = fetch(&core, 0).expect("it runs");
            if let Some(direction) = direction {
                let last = status.requests.last().expect("it is recorded");
                assert_eq!((last.blocks, last.direction), (1, direction), "{line}");
                let came = started + Duration::from_nanos(last.at_ns);
                assert!((sent..=world.now()).contains(&came), "{line}");
            }
        }
        host.read(8).await;
        // What is refused as there are no such blocks is none of the volume's load.
        let beyond = host.ask(&format!("2 write 0 {BLOCKS} 1")).await;
        assert!(beyond.starts_with("2 failed: "), "{beyond}");
        let status = fetch(&core, 0).expect("it runs");
        assert_eq!(places(&status), [3, 4, 5, 6, 8]);
        assert_eq!((status.recorded, status.left_out, status.others), (5, 0, 4));
        assert!(status.requests.is_sorted_by_key(|request| request.at_ns));
        let expected =
            RecordedRequest { start: Lba(8), direction: Direction::Read, ..status.requests[4] };
        assert_eq!(status.requests[4], expected);
        assert_eq!(host.ask(&format!("3 open {OTHER} me")).await, format!("3 opened 1 {BLOCKS}"));
        assert_eq!(host.ask("4 write 1 3 7").await, "4 done");
        assert_eq!(fetch(&core, 0).expect("it runs").recorded, 5, "another volume's");
    });
}

/// RECORDING-2 and RECORDING-4: requests stay until later ones are asked for, and make room then.
#[test]
fn requests_that_find_no_room_are_counted() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        start(&core, 3).expect("none runs");
        for lba in 0..5 {
            host.read(lba).await;
        }
        for _ in 0..2 {
            let status = fetch(&core, 0).expect("it runs");
            assert_eq!((places(&status), status.recorded, status.left_out), (vec![0, 1, 2], 3, 2));
        }
        assert_eq!(places(&fetch(&core, 2).expect("it runs")), [2]);
        for lba in 10..13 {
            host.read(lba).await;
        }
        let status = fetch(&core, 2).expect("it runs");
        assert_eq!((places(&status), status.recorded, status.left_out), (vec![2, 10, 11], 5, 3));
        let gone = RecordingError::NotThere { first: 2, end: 5 };
        assert_eq!(fetch(&core, 1), Err(gone.clone()));
        assert_eq!(fetch(&core, 6), Err(gone));
        assert_eq!(places(&fetch(&core, 5).expect("it runs")), [0; 0]);
    });
}

#[test]
fn a_volume_has_one_recording_at_a_time_and_a_core_a_few() {
    simulate(async |world| {
        let core = serve(&world).await;
        start(&core, 3).expect("none runs");
        assert_eq!(start(&core, 3), Err(RecordingError::Runs { id: ID }));
        let terms = RecordingTerms { id: ID, length: LENGTH, buffer_requests: 1 };
        for number in 1..=RECORDINGS_MAX {
            let uuid = Uuid::from_u128(1000 + number as u128);
            let spec = VolumeSpec { uuid, name: uuid.to_string(), blocks: BLOCKS };
            core.create_volume(ShardIndex(0), spec, Slo::default()).await.expect("room");
            let begun = core.recording(uuid, RecordingCommand::Start(terms));
            match number {
                RECORDINGS_MAX => assert_eq!(begun, Err(RecordingError::TooMany)),
                _ => assert!(begun.is_ok(), "{begun:?}"),
            }
        }
        let other = RecordingCommand::End { id: Uuid::from_u128(78) };
        assert_eq!(core.recording(VOLUME, other), Err(RecordingError::NotFound));
        let ended = core.recording(VOLUME, RecordingCommand::End { id: ID });
        assert!(ended.is_ok_and(|status| status.is_over));
        assert_eq!(fetch(&core, 0), Err(RecordingError::NotFound));
        start(&core, 3).expect("there is room again");
        let unknown = core.recording(Uuid::from_u128(5), RecordingCommand::Start(terms));
        assert_eq!(unknown, Err(RecordingError::NoVolume));
    });
}

/// RECORDING-3.
#[test]
fn a_recording_ends_with_its_time_its_client_and_its_volume() {
    simulate(async |world| {
        let core = serve(&world).await;
        let mut host = Host::with_volume(&world, VOLUME).await;
        start(&core, 10).expect("none runs");
        let started = world.now();
        host.read(1).await;
        // A client that asks keeps it for as long as it was to be.
        while world.now().since(started) < LENGTH {
            assert!(!fetch(&core, 0).expect("it runs").is_over);
            pass(&world, UNASKED_MAX / 4).await;
        }
        host.read(2).await;
        let status = fetch(&core, 0).expect("what it has stays");
        assert_eq!((places(&status), status.is_over), (vec![1], true));
        pass(&world, UNASKED_MAX * 2).await;
        assert_eq!(fetch(&core, 0), Err(RecordingError::NotFound));

        start(&core, 10).expect("the one before is forgotten");
        host.read(3).await;
        pass(&world, UNASKED_MAX / 2).await;
        assert_eq!(places(&fetch(&core, 0).expect("it is asked for")), [3]);
        pass(&world, UNASKED_MAX * 2).await;
        host.read(4).await;
        assert_eq!(fetch(&core, 0), Err(RecordingError::NotFound));

        start(&core, 10).expect("the one before is forgotten");
        core.delete_volume(VOLUME, Loss::Accepted).await.expect("a volume");
        assert_eq!(fetch(&core, 0), Err(RecordingError::NoVolume));
    });
}
