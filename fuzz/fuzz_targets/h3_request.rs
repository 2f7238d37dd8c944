//! libFuzzer entry point of [`ringroad_fuzz::targets::h3_request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::h3_request::run(data));
