//! libFuzzer entry point of [`ringroad_fuzz::targets::entry_header`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::entry_header::run(data));
