//! libFuzzer's bytes for [`roce_fuzz::rendezvous_line`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::rendezvous_line(bytes));
