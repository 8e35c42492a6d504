//! The Ethernet address behind an IPv4 address of this machine.

use std::net::Ipv4Addr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// The Ethernet address of the interface that has `ip`; `None` if none has, or it is not Ethernet.
pub fn mac_of(ip: Ipv4Addr) -> Option<[u8; 6]> {
    let interfaces: Vec<InterfaceAddress> = getifaddrs().ok()?.collect();
    let has_ip = |i: &&InterfaceAddress| {
        i.address.as_ref().and_then(|a| a.as_sockaddr_in()).is_some_and(|address| address.ip() == ip)
    };
    let name = &interfaces.iter().find(has_ip)?.interface_name;
    let same_name = interfaces.iter().filter(|i| i.interface_name == *name);
    same_name.filter_map(|i| i.address.as_ref()?.as_link_addr()?.addr()).next()
}

/// Reads `aa:bb:cc:dd:ee:ff`. For clap's `value_parser`.
pub fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let byte = |digits: &str| {
        // from_str_radix takes a sign, which is no digit.
        let two = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if two { u8::from_str_radix(digits, 16).ok() } else { None }
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    bytes
        .and_then(|b| b.try_into().ok())
        .ok_or_else(|| "not an Ethernet address such as 02:00:00:00:00:01".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_all_zero_address_and_a_stranger_none() {
        assert_eq!(mac_of(Ipv4Addr::LOCALHOST), Some([0; 6]));
        assert_eq!(mac_of(Ipv4Addr::new(192, 0, 2, 1)), None);
    }

    #[test]
    fn ethernet_addresses_have_six_bytes_in_hex() {
        assert_eq!(parse_mac("02:00:fe:DC:0a:01"), Ok([2, 0, 0xFE, 0xDC, 10, 1]));
        for bad in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "02-00-00-00-00-01",
            "+2:00:00:00:00:01",
        ] {
            assert!(parse_mac(bad).is_err(), "{bad:?}");
        }
    }
}
