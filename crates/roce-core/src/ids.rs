//! Numbers of the RoCEv2 wire, each its own type.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A number that does not fit its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Queue pair numbers have 24 bits.
    #[error("queue pair number {0:#x} does not fit 24 bits")]
    Qpn(u32),
    /// InfiniBand knows five path MTUs.
    #[error("{0} is no path MTU; take 256, 512, 1024, 2048 or 4096 bytes")]
    Mtu(u32),
}

/// A queue pair number: 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The largest queue pair number.
    pub const MAX: Self = Self(0xFF_FFFF);

    /// Refuses what does not fit 24 bits.
    pub const fn new(value: u32) -> Result<Self, IdError> {
        if value <= Self::MAX.0 { Ok(Self(value)) } else { Err(IdError::Qpn(value)) }
    }

    /// Keeps the low 24 bits.
    pub const fn from_low_bits(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u32> for Qpn {
    type Error = IdError;

    fn try_from(value: u32) -> Result<Self, IdError> {
        Self::new(value)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The key under which a peer may write our memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(u32);

impl Rkey {
    /// Any 32 bits are a key.
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// The key's 32 bits.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A packet sequence number: 24 bits, wrapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xFF_FFFF;

    /// Keeps the low 24 bits.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the packet that follows.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// `n` packets further, mod 2^24.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // wraps, which `+` on integers does not
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }

    /// How many packets `self` lies ahead of `earlier`, mod 2^24.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A path MTU: payload bytes per packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what an Ethernet MTU of 1500 carries.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes: needs an Ethernet MTU of 4200.
    B4096,
}

impl Mtu {
    /// All of them, the smallest first.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// IPv4, UDP, BTH, the longest extended headers and the ICRC; the margin that kernel drivers keep too.
    const HEADROOM: u32 = 80;

    /// The payload bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B256 => 256,
            Self::B512 => 512,
            Self::B1024 => 1024,
            Self::B2048 => 2048,
            Self::B4096 => 4096,
        }
    }

    /// The largest path MTU that a link of `link_mtu` bytes (an interface's MTU) carries; `None` where not
    /// even 256 bytes fit.
    pub fn largest_within(link_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|m| m.bytes() + Self::HEADROOM <= link_mtu)
    }
}

impl TryFrom<u32> for Mtu {
    type Error = IdError;

    fn try_from(bytes: u32) -> Result<Self, IdError> {
        Self::ALL.into_iter().find(|m| m.bytes() == bytes).ok_or(IdError::Mtu(bytes))
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// A GID: the 16-byte address of a RoCE port.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid([u8; 16]);

impl Gid {
    /// From its bytes in wire order.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in wire order.
    pub const fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// All zero: an empty entry of a GID table.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }

    /// The IPv4 address in an IPv4-mapped GID (`::ffff:a.b.c.d`).
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv6Addr::from(self.0))
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_has_24_bits() {
        assert_eq!(Qpn::new(0xFF_FFFF).map(Qpn::get), Ok(0xFF_FFFF));
        assert_eq!(Qpn::new(0x100_0000), Err(IdError::Qpn(0x100_0000)));
    }

    #[test]
    fn psn_wraps_and_measures_across_the_wrap() {
        let last = Psn::new(0xFF_FFFF);
        assert_eq!(last.next(), Psn::new(0));
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), 0xFF_FFFD);
    }

    #[test]
    fn mtu_of_a_link() {
        assert_eq!(Mtu::largest_within(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::largest_within(4200), Some(Mtu::B4096));
        assert_eq!(Mtu::largest_within(65536), Some(Mtu::B4096));
        assert_eq!(Mtu::largest_within(300), None);
        assert_eq!(Mtu::try_from(1500), Err(IdError::Mtu(1500)));
    }

    #[test]
    fn gid_of_an_ipv4_address() {
        let gid = Gid::from(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.0.0.1");
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(Gid::new([0xFE; 16]).ipv4(), None);
        assert!(Gid::new([0; 16]).is_empty());
    }
}
