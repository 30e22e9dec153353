#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::nbd_stream::run(data));
