//! libFuzzer entry point of [`ringroad_fuzz::targets::mp4_movie`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::mp4_movie::run(data));
