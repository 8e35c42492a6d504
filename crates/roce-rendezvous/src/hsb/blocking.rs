//! The control plane for programs without an async runtime.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::ecb::Pair;
use super::{
    Board, Client, Discovery, DiscoveryConfig, HsbError, Ignored, ResetOptions, RoceConfig, StartOptions,
    Timing,
};

/// A [`Client`] whose calls block the calling thread. Not for use inside an async runtime.
#[derive(Debug)]
pub struct BlockingClient {
    client: Client,
    runtime: Runtime,
}

impl BlockingClient {
    /// See [`Client::connect`].
    pub fn connect(peer: SocketAddrV4, timing: Timing) -> Result<Self, HsbError> {
        let runtime = new_runtime()?;
        let client = runtime.block_on(Client::connect(peer, timing))?;
        Ok(Self { client, runtime })
    }

    /// See [`Client::with_block_access`].
    #[must_use]
    pub fn with_block_access(self, block_access: bool) -> Self {
        Self { client: self.client.with_block_access(block_access), ..self }
    }

    /// See [`Client::version`].
    pub const fn version(&self) -> u32 {
        self.client.version()
    }

    /// See [`Client::peer`].
    pub const fn peer(&self) -> SocketAddrV4 {
        self.client.peer()
    }

    /// See [`Client::local_ip`].
    pub fn local_ip(&self) -> Result<Ipv4Addr, HsbError> {
        self.client.local_ip()
    }

    /// See [`Client::read`].
    pub fn read(&mut self, address: u32) -> Result<u32, HsbError> {
        self.runtime.block_on(self.client.read(address))
    }

    /// See [`Client::write`].
    pub fn write(&mut self, address: u32, data: u32) -> Result<(), HsbError> {
        self.runtime.block_on(self.client.write(address, data))
    }

    /// See [`Client::modify`].
    pub fn modify(&mut self, address: u32, clear: u32, set: u32) -> Result<u32, HsbError> {
        self.runtime.block_on(self.client.modify(address, clear, set))
    }

    /// See [`Client::read_block`].
    pub fn read_block(&mut self, address: u32, count: usize) -> Result<Vec<u32>, HsbError> {
        self.runtime.block_on(self.client.read_block(address, count))
    }

    /// See [`Client::write_pairs`].
    pub fn write_pairs(&mut self, pairs: &[Pair]) -> Result<(), HsbError> {
        self.runtime.block_on(self.client.write_pairs(pairs))
    }

    /// See [`Client::start`].
    pub fn start(&mut self, options: &StartOptions) -> Result<(), HsbError> {
        self.runtime.block_on(self.client.start(options))
    }

    /// See [`Client::reset`].
    pub fn reset(&mut self, options: &ResetOptions) -> Result<Board, HsbError> {
        self.runtime.block_on(self.client.reset(options))
    }

    /// See [`Client::configure_roce`].
    pub fn configure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        self.runtime.block_on(self.client.configure_roce(config))
    }

    /// See [`Client::unconfigure_roce`].
    pub fn unconfigure_roce(&mut self, config: &RoceConfig) -> Result<(), HsbError> {
        self.runtime.block_on(self.client.unconfigure_roce(config))
    }
}

/// A [`Discovery`] whose calls block the calling thread. Not for use inside an async runtime.
#[derive(Debug)]
pub struct BlockingDiscovery {
    discovery: Discovery,
    runtime: Runtime,
}

impl BlockingDiscovery {
    /// See [`Discovery::open`].
    pub fn open(config: &DiscoveryConfig) -> Result<Self, HsbError> {
        let runtime = new_runtime()?;
        let discovery = runtime.block_on(async { Discovery::open(config) })?;
        Ok(Self { discovery, runtime })
    }

    /// See [`Discovery::collect`].
    pub fn collect(&mut self, time: Duration) -> Result<Vec<Board>, HsbError> {
        self.runtime.block_on(self.discovery.collect(time))
    }

    /// See [`Discovery::find`].
    pub fn find(&mut self, time: Duration, wanted: impl FnMut(&Board) -> bool) -> Result<Board, HsbError> {
        self.runtime.block_on(self.discovery.find(time, wanted))
    }

    /// See [`Discovery::ignored`].
    pub const fn ignored(&self) -> Ignored {
        self.discovery.ignored()
    }
}

fn new_runtime() -> Result<Runtime, HsbError> {
    Builder::new_current_thread().enable_all().build().map_err(HsbError::Runtime)
}
