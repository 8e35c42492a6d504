//! What two ends tell each other before traffic.

use std::net::Ipv4Addr;

use crate::{Qpn, Rkey};

/// Our end, as a peer must know it. Valid once the queue pair exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Our queue pair.
    pub qpn: Qpn,
    /// The key of our RX ring.
    pub rkey: Rkey,
    /// Our RoCE address.
    pub ip: Ipv4Addr,
}

/// The peer's end, as we must know it to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The key of the peer's RX ring; `None` for a peer that only receives SENDs.
    pub rkey: Option<Rkey>,
    /// The peer's RoCE address.
    pub ip: Ipv4Addr,
}
