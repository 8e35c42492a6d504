//! Whether the addresses of a run are free, asked before anything is built.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Result, bail};

use super::link::{Link, Peer};

/// The UDP port of RoCEv2, the same for every address.
const ROCE_PORT: u16 = 4791;

/// Binds what the programs will, once. A clash that comes later is reported by the program that meets it, and so is one
/// in another network namespace.
pub(super) fn check(link: &Link, control_port: u16) -> Result<()> {
    if link.bridge.device.is_none() && link.bridge.netns.is_none() {
        free(link.bridge.ip, ROCE_PORT, "--bridge-ip")?;
    }
    let Peer::Emulator(end) = &link.peer else { return Ok(()) };
    if end.netns.is_some() {
        return Ok(());
    }
    if end.device.is_none() {
        free(end.ip, ROCE_PORT, "--emulator-ip")?;
    }
    free(end.ip, control_port, "--control-port")
}

fn free(ip: Ipv4Addr, port: u16, option: &str) -> Result<()> {
    let Err(error) = UdpSocket::bind((ip, port)) else { return Ok(()) };
    match error.kind() {
        ErrorKind::AddrInUse if port == ROCE_PORT => bail!(
            "UDP port {port} (RoCEv2) of {ip} is held by somebody else. If another emulation runs, wait for it or \
             choose a free address with {option} (all of 127.0.0.0/8 is local). If it is the kernel's soft-RoCE, \
             which holds the port on every address, take --backend rxe, or remove its devices (`rdma link`, `rdma link \
             delete rxe0`) and its driver (`modprobe -r rdma_rxe`)"
        ),
        ErrorKind::AddrInUse => {
            bail!("UDP port {port} of {ip} is held by somebody else; choose a free one with {option}")
        }
        ErrorKind::AddrNotAvailable => bail!(
            "{ip} is not an address of this machine; choose one that is with {option} (all of 127.0.0.0/8 is local)"
        ),
        _ => bail!("cannot bind UDP port {port} of {ip}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_told_with_the_way_out() {
        let ip = Ipv4Addr::new(127, 91, 1, 1);
        let held = UdpSocket::bind((ip, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let error = free(ip, port, "--control-port").unwrap_err().to_string();
        assert!(error.contains(&port.to_string()) && error.contains("--control-port"), "{error}");
        drop(held);
        free(ip, port, "--control-port").unwrap();
    }

    #[test]
    fn a_foreign_address_is_told_apart() {
        // TEST-NET-1 is nobody's.
        let error = free(Ipv4Addr::new(192, 0, 2, 1), ROCE_PORT, "--bridge-ip").unwrap_err().to_string();
        assert!(error.contains("192.0.2.1 is not an address of this machine"), "{error}");
    }

    #[test]
    fn the_roce_port_names_its_usual_holders() {
        let [a, b, c, d] = std::process::id().to_be_bytes();
        let ip = Ipv4Addr::new(127, 92 ^ a ^ b, c, d);
        let _held = UdpSocket::bind((ip, ROCE_PORT)).unwrap();
        let error = free(ip, ROCE_PORT, "--bridge-ip").unwrap_err().to_string();
        assert!(error.contains("rdma link delete") && error.contains("--bridge-ip"), "{error}");
    }
}
