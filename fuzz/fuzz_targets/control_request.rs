//! libFuzzer's bytes for [`roce_fuzz::control_request`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::control_request(bytes));
