//! libFuzzer entry point of [`ringroad_fuzz::targets::jwt_token`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::jwt_token::run(data));
