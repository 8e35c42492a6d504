//! libFuzzer's bytes for [`roce_fuzz::enumeration`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::enumeration(bytes));
