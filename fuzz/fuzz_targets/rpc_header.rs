//! libFuzzer's bytes for [`roce_fuzz::rpc_header`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| roce_fuzz::rpc_header(bytes));
