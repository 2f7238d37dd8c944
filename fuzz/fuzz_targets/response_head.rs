//! libFuzzer entry point of [`ringroad_fuzz::targets::response_head`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::response_head::run(data));
