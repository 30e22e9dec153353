#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::damaged_image::run(data));
