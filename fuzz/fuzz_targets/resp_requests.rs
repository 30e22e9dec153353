#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::resp_requests::run(data));
