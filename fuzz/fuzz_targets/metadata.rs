//! libFuzzer's bytes for [`roce_fuzz::metadata`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::metadata(bytes));
