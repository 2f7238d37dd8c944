//! libFuzzer entry point of [`ringroad_fuzz::targets::range`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::range::run(data));
