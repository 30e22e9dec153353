#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::repaired_image::run(data));
