//! What a soft device is opened with.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use roce_core::Qpn;

use crate::fault::FaultConfig;
use crate::wire;

/// What a soft device is opened with.
///
/// ```
/// use roce_soft::SoftConfig;
/// let config = SoftConfig { addr: [127, 0, 0, 2].into(), ..SoftConfig::default() };
/// assert_eq!(config.port, 4791);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SoftConfig {
    /// The local IPv4 address that packets leave from; default 127.0.0.1. All of 127/8 is local, so several
    /// processes on one machine take one each.
    pub addr: Ipv4Addr,
    /// The UDP port of both ends; default 4791, which is RoCEv2's.
    pub port: u16,
    /// The number of the first queue pair. Another one takes the next number that is free, counted from here.
    /// Default: random, and each has another number than the ones before.
    pub first_qpn: Option<Qpn>,
    /// What to do to packets on their way out; default: nothing.
    pub faults: Option<FaultConfig>,
    /// Where to write every packet of the socket, in both directions, as a pcap file; default: nowhere.
    pub pcap: Option<PathBuf>,
}

impl Default for SoftConfig {
    fn default() -> Self {
        Self { addr: Ipv4Addr::LOCALHOST, port: wire::UDP_PORT, first_qpn: None, faults: None, pcap: None }
    }
}
