//! libFuzzer entry point of [`ringroad_fuzz::targets::structured_fields`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::structured_fields::run(data));
