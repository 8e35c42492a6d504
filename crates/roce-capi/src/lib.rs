//! The transceiver for C and C++: `libcudaq-realtime-cpu-roce-transport`.
//!
//! The headers under `include/` say what each function does, for those who call it from C. They are kept true by
//! a test that compares them with the functions here.
//!
//! A handle is a number, looked up with every call; a wrong one is reported and refused. No panic leaves the
//! library. Each refusal explains itself on standard error, and [`cpu_roce_last_error`] repeats it.
//!
//! Invariant: the semantics are [`roce_transport`]'s; here they are only translated. `rx_poll` and `tx_publish`
//! take no lock and do no atomic read-modify-write while one thread calls them.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod api;
#[allow(unsafe_code)]
mod dispatch;
mod engine;
mod error;
#[allow(unsafe_code)]
mod ext;
mod instance;
mod options;
mod poller;
#[allow(unsafe_code)]
mod port;
mod settings;

pub use api::*;
pub use dispatch::Dispatch;
pub use ext::*;
pub use instance::{Handle, create_on};
pub use poller::PollerHandle;
