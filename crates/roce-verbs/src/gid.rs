//! A port's GID table, and which of its entries packets leave with.

use std::fmt;
use std::net::Ipv4Addr;

use roce_core::Gid;

use crate::sys;

/// What packets with a GID look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1: directly on Ethernet, not routable.
    RoceV1,
    /// RoCE v2: on UDP.
    RoceV2,
    /// A number newer than this crate.
    Unknown(u32),
}

impl From<u32> for GidType {
    fn from(number: u32) -> Self {
        match number {
            sys::IBV_GID_TYPE_IB => Self::Ib,
            sys::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for GidType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ib => f.pad("IB"),
            Self::RoceV1 => f.pad("RoCE v1"),
            Self::RoceV2 => f.pad("RoCE v2"),
            Self::Unknown(number) => f.pad(&format!("type {number}")),
        }
    }
}

/// An entry of a GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the port's table. Not its position: tables have holes.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// What packets with it look like.
    pub kind: GidType,
    /// The index of its network interface, 0 where it has none.
    pub ifindex: u32,
}

/// The entries of a port's GID table that are in use, in the order of their indices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GidTable(Vec<GidEntry>);

impl GidTable {
    /// Sorts them, and leaves out what is empty.
    pub fn new(mut entries: Vec<GidEntry>) -> Self {
        entries.retain(|e| !e.gid.is_empty());
        entries.sort_by_key(|e| e.index);
        Self(entries)
    }

    /// The entries.
    pub fn entries(&self) -> &[GidEntry] {
        &self.0
    }

    /// The RoCEv2 entry of the address; of any IPv4 address, the first, where none is given.
    ///
    /// The same GID is in the table once for each version of RoCE. An index beyond 255 does not fit a queue
    /// pair's attributes and is passed over.
    pub fn select(&self, ip: Option<Ipv4Addr>) -> Option<(&GidEntry, Ipv4Addr)> {
        self.0
            .iter()
            .filter(|e| e.kind == GidType::RoceV2 && e.index <= u32::from(u8::MAX))
            .filter_map(|e| Some((e, e.gid.ipv4()?)))
            .find(|(_, own)| ip.is_none_or(|ip| ip == *own))
    }
}

impl fmt::Display for GidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return write!(f, "  (empty)");
        }
        for (i, entry) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            let GidEntry { index, gid, kind, ifindex } = entry;
            write!(f, "{newline}  {index:>4}  {kind:8} {gid} (interface {ifindex})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn entry(index: u32, gid: impl Into<Gid>, kind: GidType) -> GidEntry {
        GidEntry { index, gid: gid.into(), kind, ifindex: 4 }
    }

    fn link_local() -> Gid {
        Gid::new(Ipv6Addr::new(0xFE80, 0, 0, 0, 0xBA59, 0x9FFF, 0xFE12, 0x3456).octets())
    }

    const A: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

    /// A ConnectX port with two addresses of which an earlier one was removed: index 2 and 3 are holes.
    fn connectx() -> GidTable {
        GidTable::new(vec![
            entry(0, link_local(), GidType::RoceV1),
            entry(1, link_local(), GidType::RoceV2),
            entry(6, A, GidType::RoceV1),
            entry(7, A, GidType::RoceV2),
            entry(5, B, GidType::RoceV2),
            entry(4, B, GidType::RoceV1),
        ])
    }

    #[test]
    fn by_address_behind_holes_and_v1_twins() {
        let table = connectx();
        assert_eq!(table.select(Some(A)).map(|(e, ip)| (e.index, ip)), Some((7, A)));
        assert_eq!(table.select(Some(B)).map(|(e, _)| e.index), Some(5));
        assert_eq!(table.select(Some(Ipv4Addr::new(10, 0, 0, 8))), None);
    }

    #[test]
    fn without_address_the_first_ipv4_entry_of_v2() {
        assert_eq!(connectx().select(None).map(|(e, ip)| (e.index, ip)), Some((5, B)));
        let v6_only = GidTable::new(vec![entry(0, link_local(), GidType::RoceV2)]);
        assert_eq!(v6_only.select(None), None);
        let too_far = GidTable::new(vec![entry(256, A, GidType::RoceV2)]);
        assert_eq!(too_far.select(Some(A)), None);
        let v1_only = GidTable::new(vec![entry(0, A, GidType::RoceV1), entry(1, B, GidType::Unknown(3))]);
        assert_eq!(v1_only.select(None), None);
        assert_eq!(v1_only.select(Some(A)), None);
    }

    #[test]
    fn a_soft_roce_port_on_loopback() {
        let table = GidTable::new(vec![
            entry(0, Gid::new(Ipv6Addr::LOCALHOST.octets()), GidType::RoceV2),
            entry(1, Ipv4Addr::LOCALHOST, GidType::RoceV2),
            entry(2, Gid::new([0; 16]), GidType::RoceV2),
        ]);
        assert_eq!(table.entries().len(), 2, "the empty entry is left out");
        assert_eq!(table.select(None).map(|(e, _)| e.index), Some(1));
    }

    #[test]
    fn printed_one_entry_a_line() {
        let text = connectx().to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(lines[5], "     7  RoCE v2  ::ffff:192.168.0.1 (interface 4)");
        assert_eq!(GidTable::new(Vec::new()).to_string(), "  (empty)");
    }
}
