#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::lying_target::run(data));
