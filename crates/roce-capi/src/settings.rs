//! What a transceiver is to be made from; it may change until the set-up.

use std::fmt::Display;
use std::net::Ipv4Addr;

use roce_core::{PeerEndpoint, Qpn, Rkey};
use roce_transport::{Config, ConfigBuilder, Mode, TxMode};

use crate::error::Refusal;
use crate::options;

/// A configuration in the making, always one that can be built.
#[derive(Debug)]
pub(crate) struct Settings {
    builder: ConfigBuilder,
    peer: Option<Peer>,
    /// As C gives it: what is no address fails the set-up, rather than that another is taken.
    local_ip: Option<String>,
}

/// A peer as C names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    qp: u32,
    ip: Ipv4Addr,
    rkey: u32,
}

/// The arguments of `cpu_roce_create_transceiver`, as C gives them.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) device: Option<String>,
    pub(crate) port: i32,
    pub(crate) peer_qp: u32,
    pub(crate) frame_size: usize,
    pub(crate) page_size: usize,
    pub(crate) num_pages: u32,
    pub(crate) peer_ip: Option<String>,
    pub(crate) forward: bool,
    pub(crate) rx_only: bool,
    pub(crate) tx_only: bool,
    pub(crate) unified: bool,
    pub(crate) tx_mode: u32,
    pub(crate) peer_rx_base: u64,
    pub(crate) peer_rkey: u32,
}

impl Settings {
    pub(crate) fn new(builder: ConfigBuilder) -> Result<Self, Refusal> {
        builder.clone().build()?;
        Ok(Self { builder, peer: None, local_ip: None })
    }

    pub(crate) fn of_arguments(given: &Arguments) -> Result<Self, Refusal> {
        let device = given.device.as_deref().ok_or(Refusal::Null("device_name"))?;
        let builder = Config::builder(device)
            .port(in_range("ib_port", given.port, "1 to 255")?)
            .frame_size(in_range("frame_size", given.frame_size, "a number of 32 bits")?)
            .page_size(in_range("page_size", given.page_size, "a number of 32 bits")?)
            .num_pages(given.num_pages)
            .mode(given.mode()?)
            .tx_mode(given.tx_mode()?)
            .peer_rx_base(given.peer_rx_base);
        let settings = Self::new(builder)?;
        let peer = given.peer_ip.as_deref().map(|ip| Peer::new(given.peer_qp, ip, given.peer_rkey));
        Ok(Self { peer: peer.transpose()?, ..settings })
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// `None` and the empty string stand for the device's own choice.
    pub(crate) fn set_local_ip(&mut self, text: Option<String>) -> Result<(), Refusal> {
        self.local_ip = text.filter(|t| !t.is_empty());
        self.parse_local_ip().map(drop)
    }

    fn parse_local_ip(&self) -> Result<Option<Ipv4Addr>, Refusal> {
        self.local_ip.as_deref().map(|text| address("local_ip", text)).transpose()
    }

    pub(crate) fn set_option(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        let builder = options::apply(self.builder.clone(), key, value)?;
        builder.clone().build()?;
        self.builder = builder;
        Ok(())
    }

    pub(crate) fn build(&self) -> Result<Config, Refusal> {
        let builder = self.builder.clone();
        let builder = match self.parse_local_ip()? {
            Some(ip) => builder.local_ip(ip),
            None => builder,
        };
        Ok(builder.build()?)
    }
}

impl Peer {
    pub(crate) fn new(qp: u32, ip: &str, rkey: u32) -> Result<Self, Refusal> {
        Ok(Self { qp, ip: address("peer_ip", ip)?, rkey })
    }

    /// An rkey of 0 is the same as none.
    pub(crate) fn endpoint(self) -> Result<PeerEndpoint, Refusal> {
        let qpn = Qpn::new(self.qp)
            .map_err(|_| Refusal::argument("the peer's QP", self.qp, "a number of 24 bits"))?;
        Ok(PeerEndpoint { qpn, rkey: (self.rkey != 0).then(|| Rkey::new(self.rkey)), ip: self.ip })
    }
}

fn address(what: &'static str, text: &str) -> Result<Ipv4Addr, Refusal> {
    let refused = |_| Refusal::argument(what, format_args!("`{text}`"), "an IPv4 address such as 10.0.0.1");
    text.parse().map_err(refused)
}

impl Arguments {
    fn mode(&self) -> Result<Mode, Refusal> {
        match (self.forward, self.rx_only, self.tx_only, self.unified) {
            (false, false, false, false) => Ok(Mode::Threads),
            (true, false, false, false) => Ok(Mode::Forward),
            (false, true, false, false) => Ok(Mode::RxOnly),
            (false, false, true, false) => Ok(Mode::TxOnly),
            (false, false, false, true) => Ok(Mode::Unified),
            _ => Err(Refusal::ManyModes),
        }
    }

    fn tx_mode(&self) -> Result<TxMode, Refusal> {
        match self.tx_mode {
            0 => Ok(TxMode::Send),
            1 => Ok(TxMode::WriteWithImm),
            other => Err(Refusal::argument("tx_mode", other, "0 (RDMA_SEND) or 1 (RDMA_WRITE_WITH_IMM)")),
        }
    }
}

fn in_range<T: TryFrom<V>, V: Copy + Display>(
    what: &'static str,
    value: V,
    expected: &'static str,
) -> Result<T, Refusal> {
    T::try_from(value).map_err(|_| Refusal::argument(what, value, expected))
}
