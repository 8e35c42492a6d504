//! The transceiver as a bridge provider: `libcudaq-realtime-bridge-cpu-roce.so`, loaded by `dlopen`.
//!
//! The library has one symbol, [`cudaq_realtime_get_bridge_interface`], which gives a table of functions. A program
//! makes a provider from command-line arguments, asks it for its rings (or, for `--unified`, for the two functions
//! that drive it), and serves the requests itself. Peers find it over a TCP rendezvous, or are an FPGA whose control
//! plane is told our end by others.
//!
//! As in the C library, handles are looked up and no panic leaves. Refusals explain themselves on standard error.
//!
//! Invariant: nothing of the C ABI of the transceiver is in here; both stand on the same crates.

#![deny(unsafe_code)]

pub mod abi;
mod error;
#[allow(unsafe_code)]
mod interface;
mod options;
mod provider;

pub use interface::cudaq_realtime_get_bridge_interface;
