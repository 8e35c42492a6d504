//! The software FPGA as a whole.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use roce_core::{Device, Mtu, Qpn};
use roce_rendezvous::hsb::regs::{self, PLAYBACK_RAM};

use crate::answer;
use crate::control::{ControlCounts, ControlPlane};
use crate::error::EmulatorError;
use crate::link::{BufferSizes, Links};
use crate::player::Player;
use crate::regs::{Order, Registers};
use crate::summary::Summary;

/// An answer may be this long whatever the page: bridges send their own frame size.
const LEAST_ANSWER: u32 = 4096;

/// How the emulator is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where the control plane listens; default 0.0.0.0:8193. Port 0 takes a free one.
    pub control: SocketAddrV4,
    /// The host's RoCE address; default: what the host writes into its virtual port.
    pub host_ip: Option<Ipv4Addr>,
    /// The virtual port's registers; default 0x1000.
    pub vp_address: u32,
    /// The host interface's registers; default 0x0800.
    pub hif_address: u32,
    /// Bytes: longer windows are cut to this; default 384. At least 24, a message's header.
    pub page_size: u32,
    /// The host sends requests back unchanged instead of answering them; default no.
    pub forward: bool,
    /// How long a window may take to be answered; default 10 s.
    pub response_timeout: Duration,
    /// Payload bytes per packet; default: the most that the link carries.
    pub mtu: Option<Mtu>,
    /// The version that the control plane tells; default 0x2606.
    pub version: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            control: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 8193),
            host_ip: None,
            vp_address: regs::VP_ADDRESS,
            hif_address: regs::EMULATOR_HIF_ADDRESS,
            page_size: 384,
            forward: false,
            response_timeout: Duration::from_secs(10),
            mtu: None,
            version: 0x2606,
        }
    }
}

impl Config {
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
    links: Links<D>,
    obeyed: Order,
}

impl<D: Device> Emulator<D> {
    /// Makes a queue pair on `device`, posts its receives and opens the control plane.
    pub fn bind(config: Config, device: D) -> Result<Self, EmulatorError> {
        if (config.page_size as usize) < answer::HEADER {
            return Err(EmulatorError::PageSize(config.page_size));
        }
        let registers = Arc::new(Registers::new(config.version, config.vp_address, config.hif_address)?);
        let sizes =
            BufferSizes { answer: config.longest_answer(), window: config.longest_window(), mtu: config.mtu };
        let links = Links::new(device, sizes)?;
        let control = ControlPlane::bind(config.control, Arc::clone(&registers))?;
        Ok(Self { config, registers, control, links, obeyed: Order::default() })
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

    /// Plays whatever the host orders, pass by pass, until `stop` is set; then returns within 100 ms and tells
    /// what came of all the windows. The calling thread is the player's.
    pub fn run(&mut self, stop: &AtomicBool) -> Summary {
        let player = Player::new(&self.registers, &mut self.links, &self.config, stop);
        let mut summary = player.run(&mut self.obeyed);
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
