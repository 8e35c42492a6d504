//! The link a transceiver runs on, chosen by the device's name.
#![cfg_attr(not(any(feature = "soft", feature = "verbs")), allow(unused_variables))] // nothing to call

use std::net::Ipv4Addr;
use std::sync::Arc;

use roce_core::{
    CompletionError, ConnectError, Device, Mtu, PeerEndpoint, PostError, Psn, QpAttr, Qpn, RecvCompletion,
    RecvWr, Rkey, SendWr, UcQp, UcRecv, UcSend, WireId, WireStats,
};
#[cfg(feature = "soft")]
use roce_soft::{SoftConfig, SoftDevice, SoftError};
#[cfg(feature = "verbs")]
use roce_verbs::{VerbsConfig, VerbsDevice, VerbsError, VerbsQp};

/// The queue pair of a device, and its halves.
#[cfg(feature = "soft")]
type SoftQp = <SoftDevice as Device>::Qp;

/// Which device to open, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceConfig {
    /// `soft`, `soft:ADDR`, or the name of an RDMA device.
    pub name: String,
    /// The port of the device, from 1.
    pub port: u8,
    /// The address to send from. `None`: the one in the device's name, or its first.
    pub local_ip: Option<Ipv4Addr>,
    /// Frames of at most so many bytes are sent within the work request, on RDMA devices. `None` asks for 256; a device
    /// that can do less does less.
    pub max_inline: Option<u32>,
    /// The number of a soft device's first queue pair, instead of a random one.
    #[cfg(feature = "soft")]
    pub first_qpn: Option<Qpn>,
    /// Faults to inject into what a soft device sends.
    #[cfg(feature = "soft")]
    pub faults: Option<roce_soft::FaultConfig>,
    /// A file for the packets that a soft device sends and receives.
    #[cfg(feature = "soft")]
    pub pcap: Option<std::path::PathBuf>,
}

impl DeviceConfig {
    /// Port 1 of the device of that name, its first address.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            port: 1,
            local_ip: None,
            max_inline: None,
            #[cfg(feature = "soft")]
            first_qpn: None,
            #[cfg(feature = "soft")]
            faults: None,
            #[cfg(feature = "soft")]
            pcap: None,
        }
    }
}

/// Why a device could not be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The name chooses a link that this build does not have.
    #[error("no link of that name in this build; it knows: {known} (RDMA devices need the feature `verbs`)")]
    Unknown {
        /// The forms of name it knows.
        known: &'static str,
    },
    /// `soft:` is followed by something else than an IPv4 address.
    #[error("`{0}` is no IPv4 address; write `soft:127.0.0.1`")]
    Address(String),
    /// The name and the local address name two addresses.
    #[error("the device names {device}, the local address is {local}; give one of them")]
    TwoAddresses {
        /// In the name.
        device: Ipv4Addr,
        /// Configured.
        local: Ipv4Addr,
    },
    /// A soft device has one port.
    #[cfg(feature = "soft")]
    #[error("a soft device has port 1 only, not {0}")]
    SoftPort(u8),
    /// The soft device refused.
    #[cfg(feature = "soft")]
    #[error(transparent)]
    Soft(#[from] SoftError),
    /// libibverbs or the RDMA device refused.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

/// Whatever the name of a device chose.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyDevice {
    /// RoCEv2 in userspace.
    #[cfg(feature = "soft")]
    Soft(SoftDevice),
    /// An RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(VerbsDevice),
}

/// A queue pair of [`AnyDevice`].
#[derive(Debug)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant)] // moved a few times in its life
pub enum AnyQp {
    /// In userspace.
    #[cfg(feature = "soft")]
    Soft(SoftQp),
    /// Of an RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(VerbsQp),
}

/// The sending half of an [`AnyQp`].
#[derive(Debug)]
#[non_exhaustive]
pub enum AnySend {
    /// In userspace.
    #[cfg(feature = "soft")]
    Soft(<SoftQp as UcQp>::Send),
    /// Of an RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(<VerbsQp as UcQp>::Send),
}

/// The receiving half of an [`AnyQp`].
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyRecv {
    /// In userspace.
    #[cfg(feature = "soft")]
    Soft(<SoftQp as UcQp>::Recv),
    /// Of an RDMA device.
    #[cfg(feature = "verbs")]
    Verbs(<VerbsQp as UcQp>::Recv),
}

/// Calls whichever link it is.
macro_rules! on_link {
    ($any:expr, $link:ident => $call:expr) => {
        match *$any {
            #[cfg(feature = "soft")]
            Self::Soft(ref $link) => $call,
            #[cfg(feature = "verbs")]
            Self::Verbs(ref $link) => $call,
        }
    };
    ($any:expr, mut $link:ident => $call:expr) => {
        match *$any {
            #[cfg(feature = "soft")]
            Self::Soft(ref mut $link) => $call,
            #[cfg(feature = "verbs")]
            Self::Verbs(ref mut $link) => $call,
        }
    };
}

impl AnyDevice {
    #[cfg(not(feature = "verbs"))]
    const KNOWN: &str = if cfg!(feature = "soft") { "soft, soft:ADDR" } else { "none" };

    /// Opens the device that `config` names.
    pub fn open(config: &DeviceConfig) -> Result<Self, DeviceError> {
        #[cfg(feature = "soft")]
        if let Some(addr) = soft_addr(config)? {
            if config.port != 1 {
                return Err(DeviceError::SoftPort(config.port));
            }
            let soft = SoftConfig {
                addr,
                first_qpn: config.first_qpn,
                faults: config.faults,
                pcap: config.pcap.clone(),
                ..SoftConfig::default()
            };
            return Ok(Self::Soft(SoftDevice::open(soft)?));
        }
        #[cfg(feature = "verbs")]
        return Ok(Self::Verbs(VerbsDevice::open(VerbsConfig {
            device: config.name.clone(),
            port: config.port,
            local_ip: config.local_ip,
            max_inline: config.max_inline,
        })?));
        #[cfg(not(feature = "verbs"))]
        Err(DeviceError::Unknown { known: Self::KNOWN })
    }
}

/// The address of a `soft` device; `None` if the name chooses another link.
#[cfg(feature = "soft")]
fn soft_addr(config: &DeviceConfig) -> Result<Option<Ipv4Addr>, DeviceError> {
    let named = match config.name.split_once(':') {
        Some(("soft", addr)) => Some(addr.parse().map_err(|_| DeviceError::Address(addr.to_owned()))?),
        None if config.name == "soft" => None,
        _ => return Ok(None),
    };
    match (named, config.local_ip) {
        (Some(device), Some(local)) if device != local => Err(DeviceError::TwoAddresses { device, local }),
        (named, local) => Ok(Some(named.or(local).unwrap_or(Ipv4Addr::LOCALHOST))),
    }
}

impl Device for AnyDevice {
    type Qp = AnyQp;
    type Error = DeviceError;

    fn create_qp(&self, attr: &QpAttr) -> Result<AnyQp, DeviceError> {
        match *self {
            #[cfg(feature = "soft")]
            Self::Soft(ref device) => Ok(AnyQp::Soft(device.create_qp(attr)?)),
            #[cfg(feature = "verbs")]
            Self::Verbs(ref device) => Ok(AnyQp::Verbs(device.create_qp(attr)?)),
        }
    }
}

impl UcQp for AnyQp {
    type Send = AnySend;
    type Recv = AnyRecv;
    type Error = DeviceError;

    fn qpn(&self) -> Qpn {
        on_link!(self, qp => qp.qpn())
    }

    fn rkey(&self) -> Rkey {
        on_link!(self, qp => qp.rkey())
    }

    fn local_ip(&self) -> Ipv4Addr {
        on_link!(self, qp => qp.local_ip())
    }

    fn path_mtu(&self) -> Mtu {
        on_link!(self, qp => qp.path_mtu())
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        on_link!(self, qp => qp.wire_stats())
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        on_link!(self, mut qp => qp.post_recv(wr))
    }

    fn start_at(&mut self, psn: Psn) {
        on_link!(self, mut qp => qp.start_at(psn));
    }

    fn connect(self, peer: &PeerEndpoint) -> Result<(AnySend, AnyRecv), ConnectError<Self>> {
        match self {
            #[cfg(feature = "soft")]
            Self::Soft(qp) => match qp.connect(peer) {
                Ok((send, recv)) => Ok((AnySend::Soft(send), AnyRecv::Soft(recv))),
                Err(e) => Err(ConnectError { qp: Self::Soft(e.qp), error: e.error.into() }),
            },
            #[cfg(feature = "verbs")]
            Self::Verbs(qp) => match qp.connect(peer) {
                Ok((send, recv)) => Ok((AnySend::Verbs(send), AnyRecv::Verbs(recv))),
                Err(e) => Err(ConnectError { qp: Self::Verbs(e.qp), error: e.error.into() }),
            },
        }
    }
}

impl UcSend for AnySend {
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        on_link!(self, mut send => send.stage(wr))
    }

    fn flush(&mut self) -> Result<usize, PostError> {
        on_link!(self, mut send => send.flush())
    }

    fn send(&mut self, wr: &SendWr) -> Result<usize, PostError> {
        on_link!(self, mut send => send.send(wr))
    }

    fn reap(&mut self) -> Result<(), CompletionError> {
        on_link!(self, mut send => send.reap())
    }
}

impl UcRecv for AnyRecv {
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        on_link!(self, mut recv => recv.post_recv(wr))
    }

    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        on_link!(self, mut recv => recv.poll(out))
    }

    fn counts_packets(&self) -> bool {
        on_link!(self, recv => recv.counts_packets())
    }

    fn shared_wire(&self) -> Option<WireId> {
        on_link!(self, recv => recv.shared_wire())
    }

    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        on_link!(self, mut recv => recv.poll_landed(out))
    }
}
