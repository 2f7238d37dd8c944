//! libFuzzer entry point of [`ringroad_fuzz::targets::client_hello`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::client_hello::run(data));
