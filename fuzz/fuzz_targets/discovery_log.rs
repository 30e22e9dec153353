#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::discovery_log::run(data));
