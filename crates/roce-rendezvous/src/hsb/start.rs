//! Starts a board, and restarts it.

use std::time::Duration;

use super::discovery::{Discovery, DiscoveryConfig};
use super::ecb::Pair;
use super::{Board, Client, HsbError, regs};

/// From this version on the FPGA has the registers of events.
const EVENTS_SINCE: u32 = 0x2503;
/// How long what hangs on the FPGA is held in reset.
const HOLD_RESET: Duration = Duration::from_millis(100);
/// A sequence without a step.
const NO_STEPS: u32 = 0;

/// How a board is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartOptions {
    /// Start the PTP clock, from which times in the FPGA's metadata come; default yes. Control plane and data plane
    /// work without.
    pub ptp: bool,
    /// The host's UDP port for messages about events, of which none is turned on here; default 0.
    pub event_port: u16,
    /// Put the sequence that does nothing into the sequencer's memory; default yes.
    pub null_sequence: bool,
}

impl Default for StartOptions {
    fn default() -> Self {
        Self { ptp: true, event_port: 0, null_sequence: true }
    }
}

/// How a board is restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetOptions {
    /// Where its announcement is listened for.
    pub discovery: DiscoveryConfig,
    /// Which board it is, as discovered; default: whichever announces itself from the address of the session. A board
    /// whose address was set by a host comes back with another one.
    pub board: Option<Board>,
    /// How long it may take to come back; default 30 s.
    pub timeout: Duration,
    /// How it is started then, as far as its kind can be started so.
    pub start: StartOptions,
}

impl Default for ResetOptions {
    fn default() -> Self {
        Self {
            discovery: DiscoveryConfig::default(),
            board: None,
            timeout: Duration::from_secs(30),
            start: StartOptions::default(),
        }
    }
}

impl Client {
    /// What a host writes to a board before anything else. The version has been read when the session began.
    pub async fn start(&mut self, options: &StartOptions) -> Result<(), HsbError> {
        self.read(regs::FPGA_CRC).await?;
        if options.ptp {
            self.write_table(&regs::PTP_START).await?;
        }
        if self.version() < EVENTS_SINCE {
            return Ok(());
        }
        self.write_table(&regs::EVENTS_OFF).await?;
        self.write(regs::EVENT_UDP_PORT, options.event_port.into()).await?;
        self.write(regs::EVENT_SOURCE_UDP_PORT, regs::EVENT_SOURCE_PORT).await?;
        if options.null_sequence {
            self.write(regs::NULL_SEQUENCE, NO_STEPS).await?;
        }
        Ok(())
    }

    /// Whether the PTP clock follows its master.
    pub async fn ptp_is_synchronized(&mut self) -> Result<bool, HsbError> {
        Ok(self.read(regs::PTP_STATUS).await? & regs::PTP_SYNCHRONIZED == regs::PTP_SYNCHRONIZED)
    }

    /// Restarts the board, waits until it makes itself known, and starts it. All that was configured is gone: page
    /// and packet numbers begin at 0 again. The session goes on, at the board's new address if it has another one.
    pub async fn reset(&mut self, options: &ResetOptions) -> Result<Board, HsbError> {
        let mut discovery = Discovery::open(&options.discovery)?;
        self.write(regs::PERIPHERAL_RESET, 0).await?;
        tokio::time::sleep(HOLD_RESET).await;
        self.write(regs::PERIPHERAL_RESET, regs::PERIPHERALS_ON).await?;
        self.write_and_lose(regs::RESET, regs::RESET_DEVICE).await?;
        discovery.forget()?;
        let ip = *self.peer().ip();
        let is_it = |heard: &Board| match &options.board {
            Some(board) => (heard.serial(), heard.data_plane()) == (board.serial(), board.data_plane()),
            None => heard.peer_ip == ip,
        };
        let board = discovery.find(options.timeout, is_it).await?;
        self.reconnect(board.peer_ip).await?;
        let start = &options.start;
        let null_sequence = start.null_sequence && board.start_options().null_sequence;
        self.start(&StartOptions { null_sequence, ..start.clone() }).await?;
        Ok(board)
    }

    async fn write_table(&mut self, table: &[(u32, u32)]) -> Result<(), HsbError> {
        let pairs: Vec<Pair> = table.iter().map(|&(address, data)| Pair::new(address, data)).collect();
        self.write_pairs(&pairs).await
    }
}
