//! libFuzzer entry point of [`ringroad_fuzz::targets::trace_context`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::trace_context::run(data));
