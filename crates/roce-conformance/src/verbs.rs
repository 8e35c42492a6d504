//! RDMA devices, through libibverbs.

use std::env;
use std::net::Ipv4Addr;
use std::path::Path;

use roce_transport::{Config, ConfigBuilder};
use roce_verbs::{VerbsConfig, VerbsDevice};

use crate::links::{BadWrite, Links, OverlongSend, Side};

/// The devices that the environment names.
///
/// | variable | means | absent |
/// | --- | --- | --- |
/// | `ROCE_TEST_DEVICE` | the device of one end | panics |
/// | `ROCE_TEST_PEER_DEVICE` | the device of the other | the same device |
/// | `ROCE_TEST_IP`, `ROCE_TEST_PEER_IP` | their addresses | the first that the device has |
#[derive(Debug)]
pub struct VerbsLinks {
    a: Port,
    b: Port,
}

#[derive(Debug, Clone)]
struct Port {
    device: String,
    ip: Option<Ipv4Addr>,
}

impl VerbsLinks {
    /// Reads the environment.
    ///
    /// # Panics
    ///
    /// Where it names no device, or an address that is none: a test must not pass because there is nothing to test.
    pub fn from_env() -> Self {
        let Some(device) = variable("ROCE_TEST_DEVICE") else {
            panic!(
                "no RDMA device to test: set ROCE_TEST_DEVICE to one that `rdma link` shows, as in \
                 ROCE_TEST_DEVICE=rxe0"
            );
        };
        let a = Port { device, ip: address("ROCE_TEST_IP") };
        let b = match (variable("ROCE_TEST_PEER_DEVICE"), address("ROCE_TEST_PEER_IP")) {
            (Some(device), ip) => Port { device, ip },
            (None, ip) => Port { ip: ip.or(a.ip), ..a.clone() },
        };
        Self { a, b }
    }

    /// Whether one of them is the kernel's: its driver asks the kernel to send, by a system call.
    pub fn are_software(&self) -> bool {
        [&self.a, &self.b].iter().any(|port| is_rxe(&port.device))
    }

    fn port(&self, side: Side) -> &Port {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
}

/// Whether it is the kernel's soft-RoCE, the only driver that says which interface it sits on.
fn is_rxe(device: &str) -> bool {
    Path::new("/sys/class/infiniband").join(device).join("parent").is_file()
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn address(name: &str) -> Option<Ipv4Addr> {
    variable(name).map(|text| match text.parse() {
        Ok(ip) => ip,
        Err(_) => panic!("{name}={text} is no IPv4 address"),
    })
}

impl Links for VerbsLinks {
    type Device = VerbsDevice;

    fn device(&self, side: Side) -> VerbsDevice {
        let Port { device, ip } = self.port(side);
        let config = VerbsConfig { local_ip: *ip, ..VerbsConfig::new(device) };
        VerbsDevice::open(config).unwrap_or_else(|e| panic!("{device}: {e}"))
    }

    fn config(&self, side: Side) -> ConfigBuilder {
        let Port { device, ip } = self.port(side);
        let config = Config::builder(device);
        match ip {
            Some(ip) => config.local_ip(*ip),
            None => config,
        }
    }

    /// InfiniBand makes it a local length error, which ends the receiver.
    fn overlong_send(&self) -> OverlongSend {
        OverlongSend::FailsReceiver
    }

    /// The Linux software device drops such a WRITE and goes on; a card may put the queue pair into error.
    fn bad_write(&self) -> BadWrite {
        if is_rxe(&self.b.device) { BadWrite::Dropped } else { BadWrite::MayFailReceiver }
    }

    /// The Linux software device takes all that follows for the rest of the torn WRITE, and drops it (`resp.opcode` in
    /// drivers/infiniband/sw/rxe/rxe_resp.c is put back only where a receive is at hand; seen with Linux 6.1).
    fn survives_torn_writes(&self) -> bool {
        false
    }
}
