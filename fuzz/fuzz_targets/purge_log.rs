//! libFuzzer entry point of [`ringroad_fuzz::targets::purge_log`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::purge_log::run(data));
