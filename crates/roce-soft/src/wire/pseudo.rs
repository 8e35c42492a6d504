//! The IPv4 and UDP headers as the ICRC sees them.

use std::fmt;
use std::net::SocketAddrV4;

use zerocopy::network_endian::U16;
use zerocopy::{Immutable, IntoBytes, Unaligned};

/// Don't fragment, and no fragment.
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const IPV4_LEN: usize = 20;
pub(crate) const UDP_LEN: usize = 8;
pub(crate) const UDP_PROTOCOL: u8 = 17;

/// Where a packet comes from and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Who sends.
    pub src: SocketAddrV4,
    /// Who receives.
    pub dst: SocketAddrV4,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.src, self.dst)
    }
}

/// The two headers with every field that a router may change set to ones, and the IP id 0.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Masked {
    version: u8,
    tos: u8,
    ip_len: U16,
    id: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    ip_checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
    src_port: U16,
    dst_port: U16,
    udp_len: U16,
    udp_checksum: U16,
}

const _: () = assert!(size_of::<Masked>() == IPV4_LEN + UDP_LEN);

impl Masked {
    /// In front of a UDP payload of `datagram_len` bytes. A length that UDP cannot carry wraps, and gives
    /// an ICRC that no packet has.
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn new(flow: &Flow, datagram_len: usize) -> Self {
        Self {
            version: 0x45,
            tos: 0xFF,
            ip_len: U16::new((IPV4_LEN + UDP_LEN + datagram_len) as u16),
            id: U16::new(0),
            fragment: U16::new(DONT_FRAGMENT),
            ttl: 0xFF,
            protocol: UDP_PROTOCOL,
            ip_checksum: U16::new(0xFFFF),
            src: flow.src.ip().octets(),
            dst: flow.dst.ip().octets(),
            src_port: U16::new(flow.src.port()),
            dst_port: U16::new(flow.dst.port()),
            udp_len: U16::new((UDP_LEN + datagram_len) as u16),
            udp_checksum: U16::new(0xFFFF),
        }
    }
}
