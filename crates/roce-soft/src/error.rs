//! What can go wrong when a device is opened or a queue pair made.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use roce_core::Mtu;

/// What can go wrong when a device is opened or a queue pair made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftError {
    /// No interface of this machine has the address.
    #[error(
        "{addr} is not an address of this machine; take one that `ip -4 addr` shows, or any of 127.0.0.0/8"
    )]
    NotLocal {
        /// The address asked for.
        addr: Ipv4Addr,
    },
    /// Another socket has the address and port.
    #[error(
        "UDP {addr} is taken: by kernel soft-RoCE, which binds port 4791 on every address (`rdma link` lists \
         its devices, `rdma link delete NAME` removes one), or by another process with a soft device (`ss \
         -ulpn sport = :{port}` names it); stop it, or take another address, such as another 127.x.y.z",
        port = addr.port()
    )]
    InUse {
        /// The address asked for.
        addr: SocketAddrV4,
    },
    /// A system call failed while the device was opened.
    #[error("{call} for UDP {addr} failed: {source}")]
    Socket {
        /// Which.
        call: &'static str,
        /// The address asked for.
        addr: SocketAddrV4,
        /// Why.
        source: io::Error,
    },
    /// The interface cannot carry packets of that size.
    #[error(
        "path MTU {asked} does not fit interface {interface}, whose MTU is {link_mtu}: the headers take up to \
         80 bytes more; {advice}"
    )]
    PathMtu {
        /// The path MTU asked for.
        asked: Mtu,
        /// The interface with the device's address.
        interface: String,
        /// Its MTU in bytes.
        link_mtu: u32,
        /// What to do.
        advice: String,
    },
    /// The interface's MTU cannot be read.
    #[error("cannot read the MTU of interface {interface} from {path}: {source}; give a path MTU", path = path.display())]
    LinkMtu {
        /// The interface with the device's address.
        interface: String,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A queue deeper than any that exists.
    #[error("{what} {depth} is out of range: at most {max}")]
    Depth {
        /// Which queue.
        what: &'static str,
        /// The depth asked for.
        depth: u32,
        /// The largest depth.
        max: u32,
    },
    /// The capture file cannot be written.
    #[error("cannot write the capture file {path}: {source}", path = path.display())]
    Pcap {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The socket is shared, and already has another capture file.
    #[error(
        "packets of UDP {addr} are already captured into {open}, not {asked}: a process has one socket for an \
         address; take the same file", open = open.display(), asked = asked.display()
    )]
    PcapInUse {
        /// The socket.
        addr: SocketAddrV4,
        /// The file that is being written.
        open: PathBuf,
        /// The file asked for.
        asked: PathBuf,
    },
    /// No one host has that address.
    #[error("the peer's address {peer} is not that of one host; give the peer's own IPv4 address")]
    Peer {
        /// The address asked for.
        peer: Ipv4Addr,
    },
    /// Every queue pair number of the socket is in use.
    #[error("UDP {addr} has no queue pair number left")]
    NoQpn {
        /// The socket.
        addr: SocketAddrV4,
    },
}
