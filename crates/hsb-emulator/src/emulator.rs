//! The software FPGA as a whole.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use roce_core::{Device, Mtu, Qpn};
use roce_rendezvous::hsb::regs::{self, PLAYBACK_RAM};

use crate::announce::{Announcer, Enumeration, EnumerationCounts};
use crate::answer;
use crate::control::{ControlCounts, ControlPlane};
use crate::error::EmulatorError;
use crate::link::{BufferSizes, Links};
use crate::personality::Personality;
use crate::player::{Player, Progress};
use crate::regs::{Layout, Order, Registers};
use crate::stream::Stream;
use crate::summary::Summary;

/// An answer may be this long whatever the page: bridges send their own frame size.
const LEAST_ANSWER: u32 = 4096;

/// How the emulator is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which FPGA is played; default: the hardware.
    pub personality: Personality,
    /// Where the control plane listens; default 0.0.0.0:8193. Port 0 takes a free one.
    pub control: SocketAddrV4,
    /// The host's RoCE address; default: what the host writes into its virtual port.
    pub host_ip: Option<Ipv4Addr>,
    /// The registers of the virtual port that streams; default 0x1000. One of an FPGA's 32 is that one, with its
    /// bit in the mask; elsewhere it is another way to the first of them.
    pub vp_address: u32,
    /// Another way to the host interface of data plane 0, which is at 0x02000300; default 0x0800.
    pub hif_address: u32,
    /// Bytes: longer windows are cut to this; default 384. At least 24, a message's header.
    pub page_size: u32,
    /// The host sends requests back unchanged instead of answering them; default no.
    pub forward: bool,
    /// How long a window may take to be answered; default 10 s.
    pub response_timeout: Duration,
    /// Payload bytes per packet; default: the most that the link carries.
    pub mtu: Option<Mtu>,
    /// The version of the HSB IP, which the control plane tells, and which decides on the layout of the virtual
    /// port and the immediate; default: the personality's.
    pub hsb_ip_version: Option<u16>,
    /// How the board announces itself; default: not at all.
    pub enumeration: Option<Enumeration>,
    /// How long the device is silent when a host restarts it; default 200 ms.
    pub reboot: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            personality: Personality::default(),
            control: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 8193),
            host_ip: None,
            vp_address: regs::VP_ADDRESS,
            hif_address: regs::EMULATOR_HIF_ADDRESS,
            page_size: 384,
            forward: false,
            response_timeout: Duration::from_secs(10),
            mtu: None,
            hsb_ip_version: None,
            enumeration: None,
            reboot: Duration::from_millis(200),
        }
    }
}

impl Config {
    /// The version of the HSB IP that is played.
    pub fn hsb_ip_version(&self) -> u16 {
        self.hsb_ip_version.unwrap_or(self.personality.hsb_ip_version())
    }

    /// A virtual port after a reset.
    pub(crate) fn stream(&self) -> Stream {
        Stream::new(self.personality, self.personality.immediate(self.hsb_ip_version()))
    }

    /// Bytes.
    pub(crate) fn longest_window(&self) -> u32 {
        self.page_size.min(PLAYBACK_RAM.words * regs::BEAT_SIZE)
    }

    /// Bytes.
    pub(crate) fn longest_answer(&self) -> u32 {
        self.page_size.max(LEAST_ANSWER)
    }
}

/// A software FPGA. Its control plane answers from [`bind`](Self::bind) until it is dropped, its player plays
/// during [`run`](Self::run).
pub struct Emulator<D: Device> {
    config: Config,
    registers: Arc<Registers>,
    control: ControlPlane,
    announcer: Option<Announcer>,
    links: Links<D>,
    progress: Progress,
}

impl<D: Device> Emulator<D> {
    /// Makes a queue pair on `device`, posts its receives and opens the control plane.
    pub fn bind(config: Config, device: D) -> Result<Self, EmulatorError> {
        if (config.page_size as usize) < answer::HEADER {
            return Err(EmulatorError::PageSize(config.page_size));
        }
        let (personality, hsb_ip_version) = (config.personality, config.hsb_ip_version());
        let (vp_address, hif_address) = (config.vp_address, config.hif_address);
        let layout = Layout { personality, hsb_ip_version, vp_address, hif_address };
        let registers = Arc::new(Registers::new(layout)?);
        let sizes =
            BufferSizes { answer: config.longest_answer(), window: config.longest_window(), mtu: config.mtu };
        let links = Links::new(device, sizes)?;
        let control = ControlPlane::bind(config.control, personality, config.reboot, Arc::clone(&registers))?;
        let announce = |enumeration: &Enumeration| {
            let ip = links.local_ip();
            Announcer::start(enumeration, ip, personality, hsb_ip_version, Arc::clone(&registers))
        };
        let announcer = config.enumeration.as_ref().map(announce).transpose()?;
        let progress = Progress { done: Order::default(), stream: config.stream(), resets: 0 };
        Ok(Self { config, registers, control, announcer, links, progress })
    }

    /// The queue pair that answers go to. It stays when the host reconfigures its ring, and when another host at
    /// the same address takes over; only after a failure of the queue pair is it another one.
    pub fn qpn(&self) -> Qpn {
        self.links.qpn()
    }

    /// Where the control plane listens.
    pub fn control_address(&self) -> SocketAddrV4 {
        self.control.address()
    }

    /// What the control plane has seen so far.
    pub fn control_counts(&self) -> ControlCounts {
        self.control.counts()
    }

    /// What came of the announcements so far; `None` where there are none.
    pub fn enumeration_counts(&self) -> Option<EnumerationCounts> {
        self.announcer.as_ref().map(Announcer::counts)
    }

    /// Plays whatever the host orders, pass by pass, until `stop` is set; then returns within 100 ms and tells
    /// what came of all the windows. The calling thread is the player's.
    pub fn run(&mut self, stop: &AtomicBool) -> Summary {
        let player = Player::new(&self.registers, &mut self.links, &self.config, stop, &mut self.progress);
        let mut summary = player.run();
        summary.enumeration = self.enumeration_counts();
        summary.control = self.control.counts();
        summary.wire = self.links.wire();
        summary
    }
}

impl<D: Device> fmt::Debug for Emulator<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator")
            .field("config", &self.config)
            .field("qpn", &self.qpn())
            .field("control", &self.control_address())
            .finish_non_exhaustive()
    }
}
