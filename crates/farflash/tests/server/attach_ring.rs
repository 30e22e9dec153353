//! `farflash attach` where requests come from the kernel by io_uring: what holds of `/dev/fuse` holds there.

use std::os::unix::fs::FileExt;
use std::{fs, thread};

use crate::attach::{self, World};
use crate::support::fuse_switch::FuseSwitch;

#[test]
fn any_bytes_are_written_and_read_back_by_the_ring() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    attach::any_bytes(&[]);
    attach::any_bytes(&["--sector", "512"]);
}

/// Bounds with the fewest and smallest slots, 8 of 128 KiB for each CPU.
fn least() -> [String; 4] {
    let slots = 8 * uring::fuse_queues().expect("/sys lists CPUs");
    let bytes = slots * ((128 << 10) + 2 * 4096);
    ["--outstanding", &slots.to_string(), "--memory", &format!("{bytes}B")].map(str::to_owned)
}

#[test]
fn writers_of_one_block_do_not_disturb_each_other_by_the_ring() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    attach::writers_of_one_block(&least().each_ref().map(String::as_str));
}

#[test]
fn a_killed_server_costs_waiting_and_no_errors_by_the_ring() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    attach::killed_server();
}

#[test]
fn a_killed_attach_loses_nothing_that_was_synced_by_the_ring() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    attach::killed_attach();
}

#[test]
fn a_file_system_on_a_loop_device_outlives_its_server_by_the_ring() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    attach::file_system_on_a_loop_device();
}

/// Without the switch requests come by `/dev/fuse`; and where 8 for each CPU are too many, which is said.
#[test]
fn without_a_ring_requests_come_by_the_device() {
    let Some(off) = FuseSwitch::set(false) else { return };
    let Some(world) = World::new() else { return };
    world.attach(&[]);
    world.detach("v");
    let outcome = world.try_attach(&["--outstanding", "7"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!outcome.stderr.contains("/dev/fuse"), "it is not the bounds: {outcome:?}");
    world.detach("v");
    drop(off);
    let _on = FuseSwitch::set(true);
    let outcome = world.try_attach(&["--outstanding", "7"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(world.list()[0]["requests_by"], "/dev/fuse");
    let [option, slots, ..] = least();
    assert!(outcome.stderr.contains(&format!("{option} {slots} --memory ")), "{outcome:?}");
    world.detach("v");
}

/// More programs than there are slots: their requests wait in the kernel, and all are answered.
#[test]
fn more_requests_than_slots_wait_for_one() {
    let Some(_ring) = FuseSwitch::set(true) else { return };
    let Some(world) = World::new() else { return };
    let path = world.attach(&least().each_ref().map(String::as_str));
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    thread::scope(|scope| {
        for thread in 0..64_u64 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..20_u8 {
                    let data = [round ^ thread as u8; 8192];
                    file.write_all_at(&data, thread * 8192).unwrap();
                    let mut back = [0; 8192];
                    file.read_exact_at(&mut back, thread * 8192).unwrap();
                    assert!(back == data);
                }
            });
        }
    });
    drop(file);
    world.detach("v");
}
