//! libFuzzer's bytes for [`roce_fuzz::rocev2_packet`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::rocev2_packet(bytes));
