//! libFuzzer's bytes for [`roce_fuzz::control_reply`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::control_reply(bytes));
