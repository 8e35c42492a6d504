//! What stops a program.

use std::io;
use std::path::PathBuf;

use roce_rendezvous::hsb::HsbError;

use crate::decoder::DemError;

/// What stops a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Options that cannot work, alone or together.
    #[error("{0}")]
    Options(String),
    /// A file could not be read or written.
    #[error("{call} {}: {source}", path.display())]
    File {
        /// "read" or "write".
        call: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A detector error model that cannot be decoded with.
    #[error("{}: {source}", path.display())]
    Model {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: DemError,
    },
    /// Shots that do not fit the model or each other.
    #[error("{}: {reason}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what it should be.
        reason: String,
    },
    /// The FPGA's control plane failed.
    #[error(transparent)]
    Control(#[from] HsbError),
    /// The playback memory does not hold what was written to it.
    #[error(
        "the playback memory at {address:#010x} reads {read:#010x} where {wrote:#010x} was written; is another \
         tool using this FPGA?"
    )]
    Readback {
        /// Which word.
        address: u32,
        /// What went in.
        wrote: u32,
        /// What came out.
        read: u32,
    },
    /// The bridge's transceiver failed.
    #[error(transparent)]
    Transport(#[from] roce_transport::Error),
    /// The bridge's functions or rings do not fit.
    #[error(transparent)]
    Dispatch(#[from] roce_dispatch::DispatchError),
    /// The software FPGA could not start.
    #[error(transparent)]
    Emulator(#[from] hsb_emulator::EmulatorError),
    /// The software FPGA's link could not be opened.
    #[error("{device}: {source}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        source: roce_transport::DeviceError,
    },
    /// A ring could not be made.
    #[error(transparent)]
    Ring(#[from] roce_ring::RingError),
    /// What a measurement is compared with failed.
    #[error("{what}: {source}")]
    Raw {
        /// What it was.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A measured call was not answered as it has to be: a defect.
    #[error("an answer is wrong: the transport or the dispatcher is broken, and its speed is worth nothing")]
    WrongAnswer,
    /// A measurement was stopped before its end.
    #[error("stopped; {done} of {of} measurements were done")]
    Stopped {
        /// Points measured.
        done: usize,
        /// Points planned.
        of: usize,
    },
    /// A plot could not be drawn.
    #[error("cannot draw {what}: {reason}")]
    Plot {
        /// Its title.
        what: String,
        /// Why.
        reason: String,
    },
    /// The rings of the transceiver are in use already.
    #[error("the transceiver's rings are in other hands")]
    Taken,
    /// A thread could not be started.
    #[error("starting a thread of the bridge: {0}; are there too many, or is there too little memory?")]
    Thread(io::Error),
    /// A thread of ours panicked: a defect.
    #[error("a thread of the bridge panicked; what it said stands above")]
    Panicked,
    /// Nothing came until the time was up.
    #[error("{0}")]
    Idle(String),
    /// The signal handlers could not be installed.
    #[error("installing the handlers of SIGINT and SIGTERM: {0}")]
    Signal(io::Error),
    /// A report could not be turned into JSON.
    #[error("the report cannot be written as JSON: {0}")]
    Json(serde_json::Error),
}
