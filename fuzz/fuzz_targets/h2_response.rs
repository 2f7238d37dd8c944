//! libFuzzer entry point of [`ringroad_fuzz::targets::h2_response`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::h2_response::run(data));
