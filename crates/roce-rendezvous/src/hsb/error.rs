//! Why the control plane failed.

use std::fmt;
use std::io;
use std::net::SocketAddrV4;
use std::time::Duration;

use super::ecb::Status;

/// A register access or a configuration that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HsbError {
    /// A call on our own UDP socket failed.
    #[error("{call} for the control plane of {peer} failed: {source}")]
    Socket {
        /// Which.
        call: &'static str,
        /// The FPGA.
        peer: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
    /// The FPGA did not answer.
    #[error(
        "{peer} did not answer the {access} at {address:#010x} within {waited:?} ({attempts} requests; {silence}); check \
         that the FPGA or its emulator runs, that {} is its address and UDP port {} its control port, and that \
         no firewall lies between",
        peer.ip(), peer.port()
    )]
    Timeout {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What was asked for.
        access: Access,
        /// The first register.
        address: u32,
        /// How long.
        waited: Duration,
        /// How often it was asked.
        attempts: u32,
        /// What came instead.
        silence: Silence,
    },
    /// The FPGA refused, or could not carry out, the request.
    #[error("{peer} refused the {access} at {address:#010x}: {status}")]
    Refused {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What was asked for.
        access: Access,
        /// The register that failed.
        address: u32,
        /// Its reason.
        status: Status,
    },
    /// Registers are 4 bytes wide and do not go on past the end of the address space.
    #[error("{count} registers from {address:#x}: the address must be a multiple of 4, the last below 2^32")]
    Address {
        /// The first register.
        address: u32,
        /// How many.
        count: usize,
    },
    /// The FPGA cannot be told this.
    #[error("{field} = {value:#x} cannot be configured: {reason}")]
    Config {
        /// Of [`RoceConfig`](super::RoceConfig).
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What it must be.
        reason: String,
    },
    /// The blocking client could not start its runtime.
    #[error("no runtime for the blocking control plane: {0}")]
    Runtime(io::Error),
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads registers.
    Read,
    /// Writes registers.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// What came while an answer was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Silence {
    /// Datagrams that answer something else.
    pub foreign: u32,
    /// The peer's host said that nobody listens on the port.
    pub port_closed: bool,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port_closed, self.foreign) {
            (true, _) => f.write_str("nobody listens on the port"),
            (false, 0) => f.write_str("nothing came"),
            (false, n) => write!(f, "{n} datagrams came that answer something else"),
        }
    }
}
