#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::etcd_answers::run(data));
