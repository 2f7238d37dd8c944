//! libFuzzer entry point of [`ringroad_fuzz::targets::acme_texts`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::acme_texts::run(data));
