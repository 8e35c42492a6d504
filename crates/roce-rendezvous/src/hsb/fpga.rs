//! The control plane of an FPGA as a [`Rendezvous`].

use std::future::Future;
use std::net::Ipv4Addr;

use roce_core::{PeerEndpoint, Qpn};

use super::{Client, HsbError, Mac, RoceConfig, mac_of};
use crate::message::{Geometry, Offer};
use crate::rendezvous::{BoxError, Peer, Rendezvous};

/// The queue pair of the first sensor-TX channel on all known boards. No register tells it.
pub const FPGA_QPN: Qpn = Qpn::from_low_bits(2);

/// A rendezvous with an FPGA: an exchange writes the caller's ring into its registers, after which it streams.
///
/// ```no_run
/// # use roce_rendezvous::{Offer, Rendezvous};
/// # use roce_rendezvous::hsb::{Client, HsbRendezvous, RoceConfig, Timing};
/// # async fn stream(offer: Offer, template: RoceConfig) -> Result<(), roce_rendezvous::hsb::HsbError> {
/// let client = Client::connect("192.168.0.2:8192".parse().unwrap(), Timing::default()).await?;
/// let mut fpga = HsbRendezvous::new(client, template);
/// fpga.exchange(&offer, async |peer| connect(peer)).await?;
/// // Frames arrive here.
/// fpga.unconfigure().await
/// # }
/// # fn connect(_: roce_rendezvous::Peer) -> Result<(), std::io::Error> { Ok(()) }
/// ```
#[derive(Debug)]
pub struct HsbRendezvous {
    client: Client,
    template: RoceConfig,
    qpn: Qpn,
    configured: Option<RoceConfig>,
}

impl HsbRendezvous {
    /// With the board of `client`, which has been [started](Client::start) unless it streams already.
    ///
    /// Of `template` an exchange replaces the queue pair, the key and the address by those of the offer, and the size
    /// and number of the pages where the offer tells its rings. An all-zero Ethernet address stands for the one of the
    /// interface that has the offer's address. The rest is as told: which stream of the board, the size of the frames
    /// that it sends, metadata, MTU.
    pub const fn new(client: Client, template: RoceConfig) -> Self {
        Self { client, template, qpn: FPGA_QPN, configured: None }
    }

    /// The same with another queue pair of the FPGA than [`FPGA_QPN`].
    #[must_use]
    pub fn with_fpga_qpn(self, qpn: Qpn) -> Self {
        Self { qpn, ..self }
    }

    /// The board's registers.
    pub const fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// What the FPGA was told, from an exchange until it is unconfigured.
    pub const fn configured(&self) -> Option<&RoceConfig> {
        self.configured.as_ref()
    }

    /// Stops the stream and makes the FPGA forget the ring. Without an exchange before, does nothing. To be called
    /// before the ring goes: an FPGA writes on for ever.
    pub async fn unconfigure(&mut self) -> Result<(), HsbError> {
        if let Some(config) = &self.configured {
            self.client.unconfigure_roce(config).await?;
            self.configured = None;
        }
        Ok(())
    }

    fn config_for(&self, local: &Offer) -> Result<RoceConfig, HsbError> {
        let template = self.template.clone().authenticate(local.qpn, local.rkey);
        let (page_size, pages) = match local.geometry {
            Some(Geometry { slots, slot_size, .. }) => (slot_size, slots),
            None => (template.page_size, template.pages),
        };
        let mac = known_mac(template.mac, local.ip)?;
        Ok(RoceConfig { ip: local.ip, mac, page_size, pages, ..template })
    }
}

fn known_mac(told: Mac, ip: Ipv4Addr) -> Result<Mac, HsbError> {
    if told == Mac([0; 6]) { mac_of(ip)?.ok_or(HsbError::NoMac { ip }) } else { Ok(told) }
}

impl Rendezvous for HsbRendezvous {
    type Error = HsbError;

    /// Checks the ring, connects the caller's queue pair, then lets the FPGA stream, since it does so at once. If
    /// `connect` fails the FPGA has been told nothing.
    async fn exchange<F, Fut, E>(&mut self, local: &Offer, connect: F) -> Result<Peer, HsbError>
    where
        F: FnOnce(Peer) -> Fut + Send,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Into<BoxError> + Send,
    {
        let config = self.config_for(local)?;
        config.check(self.client.layout()?)?;
        let fpga = self.client.peer();
        let endpoint = PeerEndpoint { qpn: self.qpn, rkey: None, ip: *fpga.ip() };
        let peer = Peer { endpoint, geometry: None };
        connect(peer).await.map_err(|error| HsbError::Connect { peer: fpga, source: error.into() })?;
        self.configured = Some(config.clone());
        self.client.configure_roce(&config).await?;
        Ok(peer)
    }
}
