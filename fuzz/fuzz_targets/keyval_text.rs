//! libFuzzer entry point of [`ringroad_fuzz::targets::keyval_text`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::keyval_text::run(data));
