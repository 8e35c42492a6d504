//! What the machine knows of the interface that an address belongs to.

use std::net::Ipv4Addr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

/// The address by which all on the link of `ip` are reached; `None` where its interface has none, or no interface has
/// `ip`.
pub(crate) fn broadcast_of(ip: Ipv4Addr) -> Option<Ipv4Addr> {
    let has_it = |entry: &InterfaceAddress| {
        entry.address.as_ref().and_then(|a| a.as_sockaddr_in()).is_some_and(|address| address.ip() == ip)
    };
    let unknown = |error: &_| tracing::warn!(%error, "getifaddrs failed: announced to this machine alone");
    let own = getifaddrs().inspect_err(unknown).ok()?.find(has_it)?;
    let broadcasts = own.flags.contains(InterfaceFlags::IFF_BROADCAST);
    let broadcast = own.broadcast.as_ref().and_then(|a| a.as_sockaddr_in()).map(|address| address.ip());
    broadcast.filter(|_| broadcasts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_loopback_nor_nobodys_address_has_one() {
        for ip in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 254)] {
            assert_eq!(broadcast_of(ip), None);
        }
    }
}
