//! Why the control plane failed.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use super::configure::{NEW_LAYOUT, OLDEST_VERSION};
use super::discovery::Ignored;
use super::ecb::Status;
use super::identity::Uuid;
use crate::rendezvous::BoxError;

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
    /// The FPGA did not answer. A write may have been carried out all the same.
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
    /// Another controller talks to the same board: its request came between two of ours, and ours was not carried
    /// out. The next request brings this controller into step again, and the other one out of it.
    #[error(
        "{peer} refused the {access} at {address:#010x}: out of sequence, it last accepted request {latched:#06x} \
         where ours is {sequence:#06x}; another controller talks to this board; end it, or take turns"
    )]
    OtherController {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What was asked for.
        access: Access,
        /// The first register.
        address: u32,
        /// Our request's number.
        sequence: u16,
        /// The number that the FPGA accepted last.
        latched: u16,
    },
    /// The board has restarted since our last request, and lost all that was written. Ours was not carried out.
    #[error(
        "{peer} refused the {access} at {address:#010x}: it has restarted since the last request and lost its \
         configuration; start and configure it again"
    )]
    Restarted {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What was asked for.
        access: Access,
        /// The first register.
        address: u32,
    },
    /// The board's HSB IP is too old, or its version is none.
    #[error(
        "{peer} tells version {version:#06x} of the HSB IP; supported are {OLDEST_VERSION:#06x} to 0xffff, from \
         {NEW_LAYOUT:#06x} on with any number of pages; update the board"
    )]
    Version {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What it tells.
        version: u32,
    },
    /// The enumeration port could not be listened on.
    #[error(
        "{call} for the boards' announcements at {address} failed: {source}; a program that listens there without \
         SO_REUSEPORT, or as another user, must end first"
    )]
    Discovery {
        /// Which.
        call: &'static str,
        /// Where.
        address: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
    /// An interface could not be listened on.
    #[error(
        "cannot listen on interface {interface}: {source}; `ip link` lists the interfaces of this machine"
    )]
    Interface {
        /// Its name.
        interface: String,
        /// Why.
        source: io::Error,
    },
    /// The interfaces of this machine could not be listed.
    #[error(
        "getifaddrs failed, so the Ethernet addresses of this machine are unknown: {source}; are there too many open files?"
    )]
    Interfaces {
        /// Why.
        source: io::Error,
    },
    /// No board made itself known.
    #[error(
        "no such board made itself known at {address} within {waited:?} ({others} announcements of others, {} \
         datagrams that announce nothing); check that the board has power and a link, that this machine has an \
         address in its network, and that no firewall drops UDP to port {}",
        ignored.total(), address.port()
    )]
    NoBoard {
        /// Where it was listened for.
        address: SocketAddrV4,
        /// How long.
        waited: Duration,
        /// Announcements of other boards and data planes.
        others: u32,
        /// What came that was no announcement.
        ignored: Ignored,
    },
    /// What the board has is not known.
    #[error("what the board at {peer} has is not known by its UUID ({}); tell its sensors, data planes and sensor \
             interfaces per sensor", uuid.map_or_else(|| "none".to_owned(), |uuid| uuid.to_string()))]
    UnknownBoard {
        /// The board.
        peer: Ipv4Addr,
        /// Its design.
        uuid: Option<Uuid>,
    },
    /// The Ethernet address that the FPGA shall send to is not known.
    #[error("{ip} is no address of this machine, so its Ethernet address is unknown; give both")]
    NoMac {
        /// The host's RoCE address.
        ip: Ipv4Addr,
    },
    /// Our own queue pair did not connect to the FPGA's. The FPGA has been told nothing.
    #[error("our queue pair did not connect to that of the FPGA at {peer}: {source}")]
    Connect {
        /// The FPGA.
        peer: SocketAddrV4,
        /// What the caller's closure said.
        source: BoxError,
    },
    /// Registers are 4 bytes wide and do not go on past the end of the address space.
    #[error(
        "{count} register(s) from {address:#x} on: the address must be a multiple of 4, the last below 2^32"
    )]
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
