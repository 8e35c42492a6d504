//! Where the registers and memories of the FPGA lie.
//!
//! Addresses are bytes, registers are 32 bits wide. Blocks whose place varies take their base address; the
//! player, the capture and their memories sit at fixed addresses.

/// [`RESET_DEVICE`] restarts the FPGA, which loses all that was written and does not answer.
pub const RESET: u32 = 0x04;
/// For [`RESET`].
pub const RESET_DEVICE: u32 = 8;
/// What hangs on the FPGA: 0 holds it in reset, [`PERIPHERALS_ON`] lets it go.
pub const PERIPHERAL_RESET: u32 = 0x08;
/// For [`PERIPHERAL_RESET`].
pub const PERIPHERALS_ON: u32 = 3;
/// The version of the FPGA's design; read-only.
pub const VERSION: u32 = 0x80;
/// The checksum of the FPGA's image; read-only.
pub const FPGA_CRC: u32 = 0x84;

/// What a host writes to start the FPGA's PTP clock, in this order: register and value.
pub const PTP_START: [(u32, u32); 5] = [(0x110, 2), (0x114, 2), (0x118, 3), (0x10C, 0x33), (0x104, 3)];
/// Bits 3:0 are [`PTP_SYNCHRONIZED`] once the clock follows its master; read-only.
pub const PTP_STATUS: u32 = 0x188;
/// For [`PTP_STATUS`].
pub const PTP_SYNCHRONIZED: u32 = 0xF;

/// What a host writes to let no event do anything, in this order and before [`EVENT_UDP_PORT`]: register and value.
pub const EVENTS_OFF: [(u32, u32); 10] = [
    (0x224, 0),
    (0x204, 0),
    (0x208, 0),
    (0x20C, u32::MAX),
    (0x20C, 0),
    (0x228, 0x3937),
    (0x22C, 0),
    (0x210, u32::MAX),
    (0x214, 0xFFFF),
    (0x218, u32::MAX),
];
/// The host's UDP port for messages about events.
pub const EVENT_UDP_PORT: u32 = 0x21C;
/// The FPGA's UDP port for messages about events; a host writes [`EVENT_SOURCE_PORT`].
pub const EVENT_SOURCE_UDP_PORT: u32 = 0x220;
/// For [`EVENT_SOURCE_UDP_PORT`].
pub const EVENT_SOURCE_PORT: u32 = 8432;
/// The memory of the event sequencer, 0x1000 bytes.
pub const SEQUENCER_RAM: u32 = 0x2000;
/// Where in it a host puts the sequence that does nothing.
pub const NULL_SEQUENCE: u32 = 0x2080;

/// The virtual ports of an FPGA: 32 blocks of [`VP_STRIDE`] from here.
pub const VP_ADDRESS: u32 = 0x1000;
/// From virtual port to virtual port, in bytes.
pub const VP_STRIDE: u32 = 0x40;
/// How many virtual ports there are.
pub const VP_COUNT: u32 = 32;
/// The host interface of data plane 0 on an FPGA.
pub const HIF_ADDRESS: u32 = 0x0200_0300;
/// From data plane to data plane, in bytes.
pub const HIF_STRIDE: u32 = 0x1_0000;
/// The host interface of the software FPGA.
pub const EMULATOR_HIF_ADDRESS: u32 = 0x0800;
/// The sensor interface 0.
pub const SIF_ADDRESS: u32 = 0x0100_0000;
/// From sensor to sensor, in bytes.
pub const SIF_STRIDE: u32 = 0x1_0000;
/// From the sensor interface: the packetizer's mode; 0 turns it off.
pub const SIF_PACKETIZER_MODE: u32 = 0x0C;
/// The control register of what streams SENDs out of the FPGA's buffer.
pub const SIF_TX_THRESHOLD: u32 = 0x0120_0000;
/// For [`SIF_TX_THRESHOLD`]: programmable thresholds and output on, so that a message leaves at once.
pub const SIF_TX_IMMEDIATE: u32 = 5;

/// The unit of page addresses and strides, in bytes.
pub const PAGE_UNIT: u32 = 128;

/// A register of a virtual port: one peer, its ring and its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Vp {
    /// The peer's queue pair, 24 bits.
    Qp = 0x00,
    /// The key of the peer's ring.
    Rkey = 0x04,
    /// The low word of page 0's byte address.
    PageLsb = 0x08,
    /// The high word of page 0's byte address.
    PageMsb = 0x0C,
    /// From page to page, in units of [`PAGE_UNIT`].
    PageInc = 0x10,
    /// Bits 11:0 the last page's index, bits 27:16 the first's.
    MaxBuff = 0x14,
    /// Bytes of a frame.
    BufferLength = 0x18,
    /// The last four bytes of the peer's MAC address.
    HostMacLow = 0x20,
    /// The first two bytes of the peer's MAC address.
    HostMacHigh = 0x24,
    /// The peer's IPv4 address as a number.
    HostIp = 0x28,
    /// Bits 15:0 the UDP port that packets go to; bit 16 = [`METADATA_OFF`].
    HostUdpPort = 0x2C,
    /// The VLAN tag: bit 16 turns it on, 15:13 priority, 12 drop-eligible, 11:0 the VLAN's number.
    Vlan = 0x34,
    /// The port's PSN, 24 bits, which the FPGA counts up.
    Psn = 0x3C,
}

impl Vp {
    /// Its address in the virtual port at `base`.
    pub const fn at(self, base: u32) -> u32 {
        base + self as u32
    }
}

/// The registers of a virtual port that were others before version 0x2602: an address per page, four at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum OldVp {
    /// Page 0's address in units of [`PAGE_UNIT`].
    Page0 = 0x08,
    /// Page 1's.
    Page1 = 0x0C,
    /// Page 2's.
    Page2 = 0x10,
    /// Page 3's.
    Page3 = 0x14,
    /// A bit per page that is used, page 0 the lowest.
    BufferMask = 0x1C,
}

impl OldVp {
    /// The page registers in their order.
    pub const PAGES: [Self; 4] = [Self::Page0, Self::Page1, Self::Page2, Self::Page3];

    /// Its address in the virtual port at `base`.
    pub const fn at(self, base: u32) -> u32 {
        base + self as u32
    }
}

/// For [`Vp::HostUdpPort`]: no metadata packet follows a frame.
pub const METADATA_OFF: u32 = 1 << 16;

/// For [`Vp::MaxBuff`]: the bits of the last page's index.
pub const LAST_PAGE_MASK: u32 = 0xFFF;
/// For [`Vp::MaxBuff`]: where the first page's index begins.
pub const FIRST_PAGE_SHIFT: u32 = 16;

/// A register of a host interface: the port that frames leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Hif {
    /// Payload per packet, in units of [`PAGE_UNIT`].
    PacketSize = 0x04,
    /// The UDP port that packets come from.
    UdpPort = 0x08,
    /// A bit per virtual port: 1 lets it stream.
    VpMask = 0x0C,
    /// What the ICRC of outgoing packets is XORed with.
    CrcXor = 0x10,
}

impl Hif {
    /// Its address in the host interface at `base`.
    pub const fn at(self, base: u32) -> u32 {
        base + self as u32
    }
}

/// A register of the Ethernet port as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Port {
    /// The UDP port of the loopback.
    LoopbackUdpPort = 0x08,
    /// The queue pair whose SENDs are register requests.
    EcbQp = 0x0C,
    /// The queue pair that packets come from.
    StaticQp = 0x18,
    /// How SENDs are acknowledged.
    AckControl = 0x1C,
    /// The UDP port of the control plane; 8192 after a reset.
    EcbUdpPort = 0x20,
    /// The UDP port that SENDs are taken on; 4791 after a reset.
    SendUdpPort = 0x24,
}

impl Port {
    /// Where the port of data plane 0 lies; others follow at [`HIF_STRIDE`].
    pub const BASE: u32 = 0x0200_0000;

    /// Its address in the port at `base`.
    pub const fn at(self, base: u32) -> u32 {
        base + self as u32
    }
}

/// A register of the player, which sends the windows of the playback memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Player {
    /// [`ENABLE_OFF`], [`ENABLE_SINGLE`] or [`ENABLE_LOOP`].
    Enable = 0x04,
    /// From window to window, [`TICKS_PER_MICROSECOND`].
    Timer = 0x08,
    /// Bytes of a window, a multiple of 64.
    WindowSize = 0x0C,
    /// How many windows.
    WindowNumber = 0x10,
}

impl Player {
    /// Where the player lies.
    pub const BASE: u32 = 0x5000_0000;

    /// Its address.
    pub const fn address(self) -> u32 {
        Self::BASE + self as u32
    }
}

/// For [`Player::Enable`]: the player stands still.
pub const ENABLE_OFF: u32 = 0;
/// For [`Player::Enable`]: every window once.
pub const ENABLE_SINGLE: u32 = 0x0D;
/// For [`Player::Enable`]: over and over.
pub const ENABLE_LOOP: u32 = 0x03;
/// For [`Player::Enable`]: the bit that makes the player run.
pub const ENABLE_RUN_BIT: u32 = 1;
/// For [`Player::Enable`]: the bit that makes it begin again after the last window.
pub const ENABLE_LOOP_BIT: u32 = 2;
/// The player's clock, for [`Player::Timer`].
pub const TICKS_PER_MICROSECOND: u32 = 322;

/// A register of the capture, which records the SENDs that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Capture {
    /// [`CAPTURE_OFF`], [`CAPTURE_ENABLE`] or [`CAPTURE_RESET`].
    Control = 0x00,
    /// [`CAPTURE_DONE`] or 0.
    Status = 0x80,
    /// Samples so far.
    SampleAddr = 0x84,
}

impl Capture {
    /// Where the capture lies.
    pub const BASE: u32 = 0x4000_0000;

    /// Its address.
    pub const fn address(self) -> u32 {
        Self::BASE + self as u32
    }
}

/// For [`Capture::Control`]: record nothing.
pub const CAPTURE_OFF: u32 = 0;
/// For [`Capture::Control`]: record.
pub const CAPTURE_ENABLE: u32 = 1;
/// For [`Capture::Control`]: forget what was recorded.
pub const CAPTURE_RESET: u32 = 2;
/// For [`Capture::Status`]: the samples are complete.
pub const CAPTURE_DONE: u32 = 2;

/// What a software FPGA tells of a loop that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LoopStats {
    /// [`LOOP_MAGIC`].
    Magic = 0x00,
    /// [`LOOP_COMPLETE`] once the numbers below stand.
    State = 0x04,
    /// Windows sent, low word.
    WindowsLow = 0x08,
    /// Windows sent, high word.
    WindowsHigh = 0x0C,
    /// Answers, low word.
    ResponsesLow = 0x10,
    /// Answers, high word.
    ResponsesHigh = 0x14,
    /// Windows that could not be sent.
    Errors = 0x18,
    /// Windows without an answer.
    Timeouts = 0x1C,
    /// [`LOOP_MAGIC`], written by whoever has read the numbers.
    Ack = 0x20,
    /// Answers that tell of a failure.
    ResponseFailures = 0x24,
}

impl LoopStats {
    /// Where the statistics lie.
    pub const BASE: u32 = 0xE000_0000;

    /// Its address.
    pub const fn address(self) -> u32 {
        Self::BASE + self as u32
    }
}

/// For [`LoopStats::Magic`] and [`LoopStats::Ack`].
pub const LOOP_MAGIC: u32 = 0x4853_4245;
/// For [`LoopStats::State`]: a loop is going on.
pub const LOOP_RUNNING: u32 = 1;
/// For [`LoopStats::State`]: the numbers stand.
pub const LOOP_COMPLETE: u32 = 2;

/// A memory in banks of words; a bank's words are contiguous, its span is larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BankedRam {
    /// Where bank 0 begins.
    pub base: u32,
    /// How many.
    pub banks: u32,
    /// Words in a bank.
    pub words: u32,
    /// From bank to bank, as a power of two of bytes.
    pub bank_shift: u32,
}

/// The windows to send. Bank `i` holds word `i` of every beat; see [`playback_word`].
pub const PLAYBACK_RAM: BankedRam = BankedRam { base: 0x5010_0000, banks: 16, words: 512, bank_shift: 11 };

/// What was captured. Bank `y` holds word `y` of every sample; see [`super::sample`].
pub const CAPTURE_RAM: BankedRam = BankedRam { base: 0x4010_0000, banks: 19, words: 8192, bank_shift: 15 };

impl BankedRam {
    /// The address of a word; `None` outside the memory.
    pub const fn address(&self, bank: u32, word: u32) -> Option<u32> {
        if bank >= self.banks || word >= self.words {
            return None;
        }
        Some(self.base + (bank << self.bank_shift) + 4 * word)
    }

    /// The bank and word at an address; `None` outside the memory. The low two bits do not count.
    pub const fn locate(&self, address: u32) -> Option<(u32, u32)> {
        let Some(offset) = address.checked_sub(self.base) else { return None };
        let bank = offset >> self.bank_shift;
        let word = (offset & ((1 << self.bank_shift) - 1)) / 4;
        if bank >= self.banks || word >= self.words { None } else { Some((bank, word)) }
    }
}

/// Bytes of a beat: [`super::sample::BEAT_BYTES`] as registers count them.
pub const BEAT_SIZE: u32 = 64;

/// The bank and word of [`PLAYBACK_RAM`] that hold word `word` of a window of `beats` 64-byte beats.
pub const fn playback_word(window: u32, beats: u32, word: u32) -> (u32, u32) {
    (word % PLAYBACK_RAM.banks, window * beats + word / PLAYBACK_RAM.banks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hsb::sample::{BEAT_BYTES, SAMPLE_WORDS};

    #[test]
    fn addresses_of_the_blocks() {
        assert_eq!(Vp::HostUdpPort.at(VP_ADDRESS), 0x102C);
        assert_eq!(OldVp::BufferMask.at(VP_ADDRESS + VP_STRIDE), 0x105C);
        assert_eq!(OldVp::PAGES.map(|page| page.at(0)), [8, 12, 16, 20]);
        assert_eq!(Hif::VpMask.at(HIF_ADDRESS), 0x0200_030C);
        assert_eq!(Port::SendUdpPort.at(Port::BASE + HIF_STRIDE), 0x0201_0024);
        assert_eq!(Player::WindowNumber.address(), 0x5000_0010);
        assert_eq!(Capture::SampleAddr.address(), 0x4000_0084);
        assert_eq!(LoopStats::ResponseFailures.address(), 0xE000_0024);
    }

    #[test]
    fn memories_hold_beats_and_samples() {
        let bytes = |words: u32| words as usize * 4;
        assert_eq!((bytes(PLAYBACK_RAM.banks), BEAT_SIZE as usize), (BEAT_BYTES, BEAT_BYTES));
        assert_eq!(CAPTURE_RAM.banks as usize, SAMPLE_WORDS);
    }

    #[test]
    fn playback_words_are_spread_over_the_banks() {
        // Window 3 of two-beat windows, word 17: beat 1, so column 7 of bank 1.
        let (bank, column) = playback_word(3, 2, 17);
        assert_eq!(PLAYBACK_RAM.address(bank, column), Some(0x5010_0000 + (1 << 11) + 4 * 7));
        assert_eq!(PLAYBACK_RAM.address(15, 511), Some(0x5010_7FFC));
        assert_eq!(PLAYBACK_RAM.address(16, 0), None);
        assert_eq!(PLAYBACK_RAM.address(0, 512), None);
    }

    #[test]
    fn capture_words_are_spread_over_the_banks() {
        assert_eq!(CAPTURE_RAM.address(16, 5), Some(0x4010_0000 + (16 << 15) + 20));
        assert_eq!(CAPTURE_RAM.address(19, 0), None);
        assert_eq!(CAPTURE_RAM.locate(0x400F_FFFC), None);
        assert_eq!(CAPTURE_RAM.locate(0x4010_0000 + (19 << 15)), None);
    }

    proptest! {
        #[test]
        fn locate_inverts_address(bank in 0..20_u32, word in 0..9000_u32, low in 0..4_u32) {
            for ram in [PLAYBACK_RAM, CAPTURE_RAM] {
                if let Some(address) = ram.address(bank, word) {
                    prop_assert_eq!(ram.locate(address + low), Some((bank, word)));
                }
            }
        }

        #[test]
        fn address_inverts_locate(address: u32) {
            for ram in [PLAYBACK_RAM, CAPTURE_RAM] {
                if let Some((bank, word)) = ram.locate(address) {
                    prop_assert_eq!(ram.address(bank, word), Some(address & !3));
                }
            }
        }
    }
}
