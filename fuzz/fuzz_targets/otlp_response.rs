//! libFuzzer entry point of [`ringroad_fuzz::targets::otlp_response`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::otlp_response::run(data));
