#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::target_commands::run(data));
