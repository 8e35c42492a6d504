//! What a transceiver is made from.

use std::net::Ipv4Addr;

use roce_core::{FrameMetadata, ImmediateLayout, METADATA_LEN, Mtu, PeerEndpoint};
use roce_ring::{Geometry, GeometryError};

use crate::device::DeviceConfig;
use crate::spin::SpinPolicy;

/// Who moves the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// An RX thread and a TX thread.
    #[default]
    Threads,
    /// An RX thread only; nothing is sent.
    RxOnly,
    /// A TX thread only; no receive is posted.
    TxOnly,
    /// One thread sends each received slot back from where it landed; no flag is touched.
    Forward,
    /// No thread: the caller's one thread drives [`Unified`](crate::Unified).
    Unified,
}

/// The verb that our transmitter posts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TxMode {
    /// SEND, for a peer that posts receives, such as an FPGA.
    #[default]
    Send,
    /// RDMA WRITE WITH IMMEDIATE into the same slot of the peer's RX ring, the slot index as the immediate.
    WriteWithImm,
}

/// Where in a WRITE's immediate the slot index is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImmediateFormat {
    /// Low 12 bits for rings of at most 4096 pages, which serves software peers and FPGAs with HSB IP 0x2603
    /// or later; the whole immediate for larger rings.
    #[default]
    Auto,
    /// The whole immediate.
    Slot,
    /// Low 12 bits; the upper 20 are a PSN (HSB IP 0x2603 and later).
    Hsb,
    /// Low 8 bits; the upper 24 are a PSN (HSB IP before 0x2603).
    Hsb2510,
    /// Not looked at: WRITEs are taken to go through the ring in strict order, from slot 0 on, and none to get lost.
    Ignore,
}

impl ImmediateFormat {
    /// How such an immediate is read in a ring of that many pages; `None` where it is not.
    pub(crate) fn layout(self, num_pages: u32) -> Option<ImmediateLayout> {
        match self {
            Self::Auto if u64::from(num_pages) <= ImmediateLayout::Hsb.pages() => Some(ImmediateLayout::Hsb),
            Self::Auto | Self::Slot => Some(ImmediateLayout::Slot),
            Self::Hsb => Some(ImmediateLayout::Hsb),
            Self::Hsb2510 => Some(ImmediateLayout::Hsb2510),
            Self::Ignore => None,
        }
    }

    /// Whether the peer is known to write PSNs into it.
    pub(crate) fn has_psn(self) -> bool {
        matches!(self, Self::Hsb | Self::Hsb2510)
    }
}

/// What to do with a torn frame: one of several packets of which one is missing, though the last one came. In the
/// missing packet's place its page holds what was there before.
///
/// Only a link that sees packets knows of them, which is the userspace one. An RDMA device tells of the last packet
/// alone and counts none that are missing: there a torn frame is handed out like any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TornFrames {
    /// Count it, and hand it out to nobody.
    #[default]
    Drop,
    /// Count it, and hand it out as it is.
    Deliver,
}

/// What to do when a message arrives for a slot that its consumer has not given back.
///
/// The older message is gone in any case, overwritten by the newer one; it is counted as an overrun, and a
/// [`Consumer`](roce_ring::Consumer) that was reading it is told. The set flag then stands for the newer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverrunPolicy {
    /// Take nothing more from the wire until the consumer has given the slot back.
    #[default]
    Wait,
    /// Go on with the next message.
    Drop,
    /// Stop with an error.
    Fail,
}

/// Whether to lock the rings into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryLock {
    /// Try; a refusal is logged once, with the limit to raise.
    #[default]
    Try,
    /// A refusal fails the set-up.
    Require,
    /// Leave them pageable.
    Off,
}

/// Everything a transceiver needs to know; checked, and complete. Made by [`Config::builder`].
#[derive(Debug, Clone)]
pub struct Config {
    pub(crate) device: DeviceConfig,
    pub(crate) geometry: Geometry,
    pub(crate) mode: Mode,
    pub(crate) tx_mode: TxMode,
    pub(crate) peer: Option<PeerEndpoint>,
    pub(crate) peer_rx_base: u64,
    pub(crate) mtu: Option<Mtu>,
    pub(crate) immediate: ImmediateFormat,
    pub(crate) frame_packets: Option<u32>,
    pub(crate) torn: TornFrames,
    pub(crate) metadata: bool,
    pub(crate) overrun: OverrunPolicy,
    pub(crate) spin: SpinPolicy,
    pub(crate) rx_cpu: Option<usize>,
    pub(crate) tx_cpu: Option<usize>,
    pub(crate) rt_priority: Option<u8>,
    pub(crate) hugepages: bool,
    pub(crate) memory_lock: MemoryLock,
}

impl Config {
    /// Starts with the link's name, and defaults for the rest: 64 pages of 384 bytes, whole pages on the wire,
    /// threads, SEND.
    pub fn builder(device: impl Into<String>) -> ConfigBuilder {
        ConfigBuilder {
            num_pages: 64,
            page_size: 384,
            frame_size: None,
            config: Self {
                device: DeviceConfig::new(device),
                geometry: Geometry::new(64, 384, 384).expect("the defaults are valid"),
                mode: Mode::default(),
                tx_mode: TxMode::default(),
                peer: None,
                peer_rx_base: 0,
                mtu: None,
                immediate: ImmediateFormat::default(),
                frame_packets: None,
                torn: TornFrames::default(),
                metadata: false,
                overrun: OverrunPolicy::default(),
                spin: SpinPolicy::default(),
                rx_cpu: None,
                tx_cpu: None,
                rt_priority: None,
                hugepages: false,
                memory_lock: MemoryLock::default(),
            },
        }
    }

    /// The link's name.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The rings' shape, the same for both.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Who moves the messages.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The verb that our transmitter posts.
    pub fn tx_mode(&self) -> TxMode {
        self.tx_mode
    }

    /// The peer known from the start, if any.
    pub fn peer(&self) -> Option<PeerEndpoint> {
        self.peer
    }
}

/// Collects a [`Config`]; [`build`](Self::build) checks it.
#[derive(Debug, Clone)]
#[must_use]
pub struct ConfigBuilder {
    num_pages: u32,
    page_size: u32,
    frame_size: Option<u32>,
    config: Config,
}

impl ConfigBuilder {
    /// Slots of each ring: a power of two.
    pub fn num_pages(mut self, pages: u32) -> Self {
        self.num_pages = pages;
        self
    }

    /// Bytes from one slot to the next.
    pub fn page_size(mut self, bytes: u32) -> Self {
        self.page_size = bytes;
        self
    }

    /// Bytes of a message on the wire, at most a page. Default: the whole page.
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.frame_size = Some(bytes);
        self
    }

    /// Who moves the messages. Default: [`Mode::Threads`].
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// The verb that our transmitter posts. Default: [`TxMode::Send`].
    pub fn tx_mode(mut self, mode: TxMode) -> Self {
        self.config.tx_mode = mode;
        self
    }

    /// The peer, for [`Transceiver::start`](crate::Transceiver::start).
    pub fn peer(mut self, peer: PeerEndpoint) -> Self {
        self.config.peer = Some(peer);
        self
    }

    /// Where the peer's RX ring begins, as its rkey counts: 0 for a peer that registered it by offset, as this
    /// crate does.
    pub fn peer_rx_base(mut self, addr: u64) -> Self {
        self.config.peer_rx_base = addr;
        self
    }

    /// The port of the device, from 1. Default: 1.
    pub fn port(mut self, port: u8) -> Self {
        self.config.device.port = port;
        self
    }

    /// The address to send from. Default: the one in the device's name, or its first.
    pub fn local_ip(mut self, ip: Ipv4Addr) -> Self {
        self.config.device.local_ip = Some(ip);
        self
    }

    /// Payload bytes per packet. Default: the most that the link carries.
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        self.config.mtu = Some(mtu);
        self
    }

    /// Where in a WRITE's immediate the slot index is.
    pub fn immediate(mut self, format: ImmediateFormat) -> Self {
        self.config.immediate = format;
        self
    }

    /// Packets of a frame, if its peer sends it as that many WRITEs of which the last has the immediate, as an FPGA
    /// does: those of the data, and one of metadata. The longest frame's, where they differ.
    ///
    /// Default: learned from the frames that come. To be told, it must be known: some FPGAs send metadata with the last
    /// data. What is told holds for the first frame, too, of which nobody else can know that its beginning is missing.
    pub fn frame_packets(mut self, packets: u32) -> Self {
        self.config.frame_packets = Some(packets);
        self
    }

    /// What to do with a frame of which a packet is missing.
    pub fn torn_frames(mut self, policy: TornFrames) -> Self {
        self.config.torn = policy;
        self
    }

    /// The peer is an FPGA that puts metadata behind each frame: see that a page has room for them, and count frames
    /// whose metadata are those of another one. Default: no.
    pub fn metadata(mut self, yes: bool) -> Self {
        self.config.metadata = yes;
        self
    }

    /// What to do when a message overwrites one that was not consumed.
    pub fn overrun(mut self, policy: OverrunPolicy) -> Self {
        self.config.overrun = policy;
        self
    }

    /// How the threads wait.
    pub fn spin(mut self, policy: SpinPolicy) -> Self {
        self.config.spin = policy;
        self
    }

    /// Pins the RX (or forward) thread to this CPU.
    pub fn rx_cpu(mut self, cpu: usize) -> Self {
        self.config.rx_cpu = Some(cpu);
        self
    }

    /// Pins the TX thread to this CPU.
    pub fn tx_cpu(mut self, cpu: usize) -> Self {
        self.config.tx_cpu = Some(cpu);
        self
    }

    /// Runs the threads under SCHED_FIFO with this priority, 1 to 99.
    pub fn rt_priority(mut self, priority: u8) -> Self {
        self.config.rt_priority = Some(priority);
        self
    }

    /// Takes the rings from the hugepage pool.
    pub fn hugepages(mut self, yes: bool) -> Self {
        self.config.hugepages = yes;
        self
    }

    /// Whether to lock the rings into memory.
    pub fn memory_lock(mut self, lock: MemoryLock) -> Self {
        self.config.memory_lock = lock;
        self
    }

    /// Sends frames of at most so many bytes within the work request, on RDMA devices; 0 never does. A device that can
    /// do less does less. Default: 256.
    pub fn max_inline(mut self, bytes: u32) -> Self {
        self.config.device.max_inline = Some(bytes);
        self
    }

    /// Faults to inject into what a soft device sends.
    #[cfg(feature = "soft")]
    pub fn faults(mut self, faults: roce_soft::FaultConfig) -> Self {
        self.config.device.faults = Some(faults);
        self
    }

    /// A file for the packets that a soft device sends and receives.
    #[cfg(feature = "soft")]
    pub fn pcap(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.config.device.pcap = Some(file.into());
        self
    }

    /// Checks everything that can be checked without opening a device.
    pub fn build(mut self) -> Result<Config, ConfigError> {
        let frame_size = self.frame_size.unwrap_or(self.page_size);
        self.config.geometry = Geometry::new(self.num_pages, self.page_size, frame_size)?;
        let config = self.config;
        if config.device.name.is_empty() {
            return Err(ConfigError::NoDevice);
        }
        if config.device.port == 0 {
            return Err(ConfigError::Port);
        }
        if config.rt_priority.is_some_and(|p| !(1..=99).contains(&p)) {
            return Err(ConfigError::RtPriority(config.rt_priority.unwrap_or_default()));
        }
        if config.frame_packets == Some(0) {
            return Err(ConfigError::NoFramePackets);
        }
        let needed = FrameMetadata::offset(frame_size) + METADATA_LEN as u64;
        if config.metadata && needed > u64::from(self.page_size) {
            return Err(ConfigError::NoRoomForMetadata { frame_size, page_size: self.page_size, needed });
        }
        let layout = config.immediate.layout(self.num_pages).unwrap_or(ImmediateLayout::Slot);
        let bits = layout.page_bits();
        if u64::from(self.num_pages) > layout.pages() {
            return Err(ConfigError::ImmediateTooNarrow {
                format: config.immediate,
                bits,
                num_pages: self.num_pages,
            });
        }
        Ok(config)
    }
}

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Pages, page size or frame size.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The device's name is empty.
    #[error("the device has no name; take `soft:ADDR` or the name of an RDMA device")]
    NoDevice,
    /// Ports count from 1.
    #[error("port 0 does not exist; ports count from 1")]
    Port,
    /// SCHED_FIFO knows 1 to 99.
    #[error("real-time priority {0} is outside 1..=99")]
    RtPriority(u8),
    /// A frame has one packet at least.
    #[error("a frame has 0 packets; its last one, with the immediate, counts")]
    NoFramePackets,
    /// The pages leave no room for metadata.
    #[error(
        "frames of {frame_size} bytes with metadata behind take {needed} bytes, a page has {page_size}; metadata begin \
         at the next multiple of 128"
    )]
    NoRoomForMetadata {
        /// Bytes of a frame.
        frame_size: u32,
        /// Bytes of a page.
        page_size: u32,
        /// Bytes that a page needs.
        needed: u64,
    },
    /// The immediate cannot name every page.
    #[error("an immediate of format {format:?} names {} pages, the ring has {num_pages}", 1u64 << .bits)]
    ImmediateTooNarrow {
        /// The format chosen.
        format: ImmediateFormat,
        /// Bits for the page.
        bits: u32,
        /// Pages of the ring.
        num_pages: u32,
    },
}
