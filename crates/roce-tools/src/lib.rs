//! The parts of the programs `hsb-bridge-cpu`, `hsb-fpga-emulator`, `hsb-fpga-playback`, `roce-service`, `roce-call` and
//! `roce-perf`.
//!
//! - [`workload`]: what is sent and what must come back.
//! - [`bridge`]: takes requests from the wire and answers them.
//! - [`emulator`]: what the software FPGA's program reports.
//! - [`playback`]: plays a workload through an FPGA and judges the answers.
//! - [`decoder`]: real decoding of real syndromes, from a detector error model.
//! - [`handlers`]: the functions that the bridge and the service offer.
//! - [`service`]: serves such functions to callers that come over the socket rendezvous.
//! - [`call`]: a caller's session with a service, and calls from a command line.
//! - [`hsb`]: finds boards, and tells one of them where to stream.
//! - [`perf`]: measurements, each beside its raw limit.
//! - [`cli`], [`output`], [`signal`]: what the programs have in common.

#![deny(unsafe_code)]

pub mod bridge;
pub mod call;
pub mod cli;
pub mod decoder;
pub mod emulator;
mod error;
pub mod handlers;
pub mod hsb;
pub mod output;
#[cfg(feature = "perf")]
pub mod perf;
pub mod playback;
pub mod service;
pub mod signal;
pub mod workload;

pub use error::Error;
