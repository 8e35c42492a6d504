//! The network interfaces of this machine.

use std::net::Ipv4Addr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

use super::HsbError;
use super::identity::Mac;

/// The Ethernet address of the interface that has `ip`; `None` if none has, or it is not Ethernet.
///
/// # Errors
/// [`HsbError::Interfaces`] when the interfaces cannot be listed.
pub fn mac_of(ip: Ipv4Addr) -> Result<Option<Mac>, HsbError> {
    // The loopback interface has them all, but tells one.
    if ip.is_loopback() {
        return Ok(Some(Mac([0; 6])));
    }
    let interfaces = getifaddrs().map_err(|error| HsbError::Interfaces { source: error.into() })?;
    Ok(mac_in(&interfaces.collect::<Vec<_>>(), ip))
}

fn mac_in(interfaces: &[InterfaceAddress], ip: Ipv4Addr) -> Option<Mac> {
    let has_ip = |i: &&InterfaceAddress| {
        i.address.as_ref().and_then(|a| a.as_sockaddr_in()).is_some_and(|address| address.ip() == ip)
    };
    let name = &interfaces.iter().find(has_ip)?.interface_name;
    let same_name = interfaces.iter().filter(|i| i.interface_name == *name);
    same_name.filter_map(|i| i.address.as_ref()?.as_link_addr()?.addr()).next().map(Mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_all_zero_address_and_a_stranger_none() {
        let mac_of = |ip| mac_of(ip).unwrap();
        assert_eq!(mac_of(Ipv4Addr::LOCALHOST), Some(Mac([0; 6])));
        assert_eq!(mac_of(Ipv4Addr::new(127, 9, 8, 7)), Some(Mac([0; 6])));
        assert_eq!(mac_of(Ipv4Addr::new(192, 0, 2, 1)), None);
    }
}
