//! libFuzzer entry point of [`ringroad_fuzz::targets::h2_reply`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::h2_reply::run(data));
