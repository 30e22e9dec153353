#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::api_requests::run(data));
