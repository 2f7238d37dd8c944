//! libFuzzer entry point of [`ringroad_fuzz::targets::dns_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ringroad_fuzz::targets::dns_message::run(data));
