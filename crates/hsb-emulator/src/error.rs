//! Why the emulator could not start.

use std::error::Error;
use std::io;
use std::net::SocketAddrV4;

use roce_ring::{GeometryError, RingError};

/// Why the emulator could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// Another program has the control plane's port.
    #[error(
        "UDP {0} is in use: another emulator runs there; stop it, or take another control port or address for this one"
    )]
    PortInUse(SocketAddrV4),
    /// The control plane's address belongs to no interface.
    #[error("{0} is no address of this machine: add it to an interface, or take one that is there")]
    NoSuchAddress(SocketAddrV4),
    /// A call for the control plane failed.
    #[error("{call} for the control plane at {address} failed: {source}")]
    Control {
        /// Which.
        call: &'static str,
        /// The control plane's address.
        address: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
    /// A call for the announcements failed.
    #[error(
        "{call} for the announcements from {source_address} failed: {error}; where another emulator announces itself \
         from there, take another address or port, or announce nothing"
    )]
    Enumeration {
        /// Which.
        call: &'static str,
        /// Where they come from.
        source_address: SocketAddrV4,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A block of registers lies where another one does.
    #[error(
        "the {block} at {address:#x} lies on the {other}; move it to a free place that is a multiple of 4"
    )]
    Overlap {
        /// The block.
        block: &'static str,
        /// Its first register.
        address: u32,
        /// What is there.
        other: &'static str,
    },
    /// No page can be so small.
    #[error("a page of {0} bytes is too small: a message's header alone has 24")]
    PageSize(u32),
    /// The buffers cannot have this shape.
    #[error("no buffers: {0}")]
    Geometry(#[from] GeometryError),
    /// The buffers could not be allocated.
    #[error("no buffers: {0}")]
    Memory(#[from] RingError),
    /// The device made no queue pair.
    #[error("the device made no queue pair: {0}")]
    Device(#[source] Box<dyn Error + Send + Sync>),
    /// The queue pair took no receive.
    #[error("the queue pair took no receive: {0}")]
    Receive(#[from] roce_core::PostError),
}
