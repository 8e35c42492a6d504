//! The interface that has an address, and what it carries.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use roce_core::Mtu;

use crate::error::SoftError;

/// The interface that has the device's address.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) interface: String,
    /// Bytes.
    pub(crate) mtu: u32,
}

impl Link {
    /// The interface with this address. The whole network of the loopback interface is local.
    pub(crate) fn of(addr: SocketAddrV4) -> Result<Self, SoftError> {
        let ip = *addr.ip();
        let all: Vec<InterfaceAddress> = getifaddrs()
            .map_err(|e| SoftError::Socket { call: "getifaddrs", addr, source: e.into() })?
            .collect();
        let exact = all.iter().find(|i| address(i) == Some(ip));
        let found = exact.or_else(|| all.iter().find(|i| is_loopback_network_of(i, ip)));
        let interface = &found.ok_or(SoftError::NotLocal { addr: ip })?.interface_name;
        // An address may carry a label such as eth0:1; the interface is what precedes the colon.
        let interface = interface.split(':').next().unwrap_or(interface).to_owned();
        let path = PathBuf::from(format!("/sys/class/net/{interface}/mtu"));
        match read_mtu(&path) {
            Ok(mtu) => Ok(Self { interface, mtu }),
            Err(source) => Err(SoftError::LinkMtu { interface, path, source }),
        }
    }

    /// The path MTU: the one asked for if the interface carries it, else the most that it carries.
    pub(crate) fn path_mtu(&self, asked: Option<Mtu>) -> Result<Mtu, SoftError> {
        let largest = Mtu::largest_within(self.mtu);
        match (asked, largest) {
            (None, Some(largest)) => Ok(largest),
            (Some(asked), Some(largest)) if asked <= largest => Ok(asked),
            (asked, largest) => Err(SoftError::PathMtu {
                asked: asked.unwrap_or(Mtu::B256),
                interface: self.interface.clone(),
                link_mtu: self.mtu,
                advice: match largest {
                    Some(largest) => format!("take {largest} or less, or raise the interface's MTU"),
                    None => "raise the interface's MTU".to_owned(),
                },
            }),
        }
    }
}

fn read_mtu(path: &PathBuf) -> io::Result<u32> {
    fs::read_to_string(path)?.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

fn address(of: &InterfaceAddress) -> Option<Ipv4Addr> {
    Some(of.address.as_ref()?.as_sockaddr_in()?.ip())
}

fn is_loopback_network_of(of: &InterfaceAddress, ip: Ipv4Addr) -> bool {
    let netmask = of.netmask.as_ref().and_then(|mask| Some(mask.as_sockaddr_in()?.ip()));
    let (Some(own), Some(mask)) = (address(of), netmask) else { return false };
    of.flags.contains(InterfaceFlags::IFF_LOOPBACK) && own & mask == ip & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32) -> Link {
        Link { interface: "eth0".into(), mtu }
    }

    #[test]
    fn path_mtu_of_a_link() {
        assert_eq!(link(1500).path_mtu(None).unwrap(), Mtu::B1024);
        assert_eq!(link(1500).path_mtu(Some(Mtu::B512)).unwrap(), Mtu::B512);
        let error = link(1500).path_mtu(Some(Mtu::B4096)).unwrap_err().to_string();
        assert!(error.contains("4096") && error.contains("1500") && error.contains("take 1024"), "{error}");
        assert!(link(100).path_mtu(None).is_err());
    }

    #[test]
    fn all_of_the_loopback_network_is_local() {
        let at = |ip| Link::of(SocketAddrV4::new(ip, 4791));
        assert_eq!(at(Ipv4Addr::new(127, 9, 8, 7)).unwrap().interface, "lo");
        assert!(matches!(at(Ipv4Addr::new(240, 0, 0, 1)), Err(SoftError::NotLocal { .. })));
    }
}
