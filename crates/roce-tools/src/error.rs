//! What stops a program.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use roce_rendezvous::hsb::HsbError;

use crate::decoder::DemError;
use crate::service::PLUGIN_TABLE;

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
    /// The two ends did not meet.
    #[error(transparent)]
    Rendezvous(#[from] roce_rendezvous::Error),
    /// A caller who made no offer, and whose place was needed.
    #[error(
        "a caller gave way to a newer one: it had made no offer, and {most} were in mid-exchange; does somebody call and \
         say nothing?"
    )]
    GaveWay {
        /// Callers in mid-exchange at a time.
        most: usize,
    },
    /// The service ended, or let its caller go.
    #[error("the service at {service} is gone: {why}; start it if it is down, then reconnect")]
    ServiceGone {
        /// Its rendezvous.
        service: SocketAddr,
        /// How that was noticed.
        why: String,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] roce_dispatch::caller::CallError),
    /// A plug-in that cannot be used.
    #[error("{}: {source}; a plug-in is a shared library that exports the table {PLUGIN_TABLE}", path.display())]
    Plugin {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: libloading::Error,
    },
    /// The metrics have no port.
    #[error(
        "cannot serve metrics on {addr}: {source}; take a free port (0: any) and an address of this machine"
    )]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The service's runtime could not be made.
    #[error("starting the control plane: {0}; are there too many open files?")]
    Runtime(io::Error),
    /// A service whose name stands for no address.
    #[error(
        "{name:?} stands for no address: {source}; write HOST:PORT, as 127.0.0.1:9000, [::1]:9000 or localhost:9000"
    )]
    Resolve {
        /// The name, with its port.
        name: String,
        /// What the resolver says.
        source: io::Error,
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
    #[error("starting a thread: {0}; are there too many, or is there too little memory?")]
    Thread(io::Error),
    /// A thread of ours panicked: a defect.
    #[error("a thread panicked; what it said stands above")]
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
