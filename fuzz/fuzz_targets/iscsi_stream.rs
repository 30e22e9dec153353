#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::iscsi_stream::run(data));
