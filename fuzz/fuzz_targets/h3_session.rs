//! libFuzzer entry point of [`ringroad_fuzz::targets::h3_session`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::h3_session::run(data));
