//! The register file: what the control plane reads and writes, and the player obeys.
//!
//! The control plane's thread is the only writer of registers. The player sees everything that was written before
//! the write of ENABLE that it acts on.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use roce_core::{Qpn, Rkey};
use roce_rendezvous::hsb::regs::{
    self, CAPTURE_RAM, Capture as CaptureRegister, Hif, LoopStats, PAGE_UNIT, PLAYBACK_RAM, Player, Vp,
};

use crate::capture::Capture;
use crate::error::EmulatorError;
use crate::summary::{PassError, Summary};

/// The checksum of an image that is no image.
const CRC: u32 = 0;
const HOST_SOURCE_PORT: u32 = 12288;
/// Registers of a virtual port, the last of them for VLANs.
const VP_WORDS: u32 = 14;
const VP_NAME: &str = "virtual port";
const HIF_NAME: &str = "host interface";

/// Blocks that hold what a host writes, and do nothing: name, first register, registers.
const PLAIN: [(&str, u32, u32); 7] = [
    ("reset registers", 0x04, 2),
    ("PTP registers", 0x104, 7),
    ("PTP status", 0x180, 4),
    ("event registers", 0x200, 13),
    ("event sequencer", 0x2000, 0x400),
    ("sensor interface", regs::SIF_ADDRESS + 4, 3),
    ("SEND threshold", regs::SIF_TX_THRESHOLD, 5),
];

/// Ranges that are not plain storage.
const FIXED: [(&str, u32, u32); 6] = [
    ("version", regs::VERSION, 2),
    ("player", Player::BASE, 5),
    ("playback memory", PLAYBACK_RAM.base, PLAYBACK_RAM.banks << (PLAYBACK_RAM.bank_shift - 2)),
    ("capture", CaptureRegister::BASE, 34),
    ("capture memory", CAPTURE_RAM.base, CAPTURE_RAM.banks << (CAPTURE_RAM.bank_shift - 2)),
    ("loop statistics", LoopStats::BASE, 10),
];

/// The register file.
pub(crate) struct Registers {
    version: u32,
    plain: Vec<Storage>,
    vp: VirtualPort,
    player: PlayerRegisters,
    pub(crate) playback: PlaybackRam,
    pub(crate) capture: Capture,
    loop_stats: Storage,
}

impl Registers {
    /// Refuses a virtual port or host interface that lies on something else.
    pub(crate) fn new(version: u32, vp_address: u32, hif_address: u32) -> Result<Self, EmulatorError> {
        check_places(vp_address, hif_address)?;
        let hif = Storage::new(Hif::PacketSize.at(hif_address), 3);
        if let Some(port) = hif.word(Hif::UdpPort.at(hif_address)) {
            port.store(HOST_SOURCE_PORT, Ordering::Relaxed);
        }
        let mut plain: Vec<Storage> =
            PLAIN.iter().map(|&(_, base, words)| Storage::new(base, words)).collect();
        plain.push(hif);
        let registers = Self {
            version,
            plain,
            vp: VirtualPort {
                base: vp_address,
                words: Storage::new(vp_address, VP_WORDS),
                written: AtomicU32::new(0),
            },
            player: PlayerRegisters::new(),
            playback: PlaybackRam::new(),
            capture: Capture::new(),
            loop_stats: Storage::new(LoopStats::BASE, 10),
        };
        registers.set_statistic(LoopStats::Magic, regs::LOOP_MAGIC);
        Ok(registers)
    }

    /// `None` where no register is. The low two bits of an address do not count.
    pub(crate) fn read(&self, address: u32) -> Option<u32> {
        let address = address & !3;
        match address {
            regs::VERSION => return Some(self.version),
            regs::FPGA_CRC => return Some(CRC),
            _ => {}
        }
        let word = || {
            let storage = self.plain.iter().chain([&self.vp.words, &self.loop_stats]);
            let word = storage.into_iter().find_map(|block| block.word(address));
            word.or_else(|| self.playback.word_at(address)).map(|word| word.load(Ordering::Acquire))
        };
        self.player.read(address).or_else(|| self.capture.read(address)).or_else(word)
    }

    /// `None` where no register is, or none that can be written.
    pub(crate) fn write(&self, address: u32, value: u32) -> Option<()> {
        let address = address & !3;
        if address == Player::Enable.address() {
            self.enable(value);
            return Some(());
        }
        if self.vp.write(address, value).is_some() || self.player.write(address, value).is_some() {
            return Some(());
        }
        let storage = self.plain.iter().chain([&self.loop_stats]);
        let word = storage.into_iter().find_map(|block| block.word(address));
        match word.or_else(|| self.playback.word_at(address)) {
            Some(word) => {
                word.store(value, Ordering::Release);
                Some(())
            }
            None => self.capture.write(address, value),
        }
    }

    /// What the host last told the player.
    pub(crate) fn order(&self) -> Order {
        Order::unpack(self.player.order.load(Ordering::Acquire)) // pairs with `enable`
    }

    /// The pass that the player's registers describe.
    pub(crate) fn pass(&self) -> Result<Pass, PassError> {
        let windows = self.player.register(Player::WindowNumber);
        let size = self.player.register(Player::WindowSize);
        let beats = size / regs::BEAT_SIZE;
        let whole = size.is_multiple_of(regs::BEAT_SIZE) && size > 0 && windows > 0;
        let held = windows.checked_mul(beats).is_some_and(|columns| columns <= PLAYBACK_RAM.words);
        if !whole || !held {
            return Err(PassError::Windows { windows, size });
        }
        let ticks = u64::from(self.player.register(Player::Timer));
        let spacing = Duration::from_nanos(ticks * 1000 / u64::from(regs::TICKS_PER_MICROSECOND));
        Ok(Pass { windows, beats, spacing })
    }

    /// The host's ring, once all of it has been written.
    pub(crate) fn target(&self) -> Option<Target> {
        self.vp.target()
    }

    /// A loop is forgotten as soon as the next one is ordered, so that nobody takes the one for the other.
    fn enable(&self, value: u32) {
        let order = self.order();
        let next = order.then(value);
        if next != order && next.runs() && next.loops() {
            self.begin_loop();
        }
        self.player.order.store(next.pack(), Ordering::Release); // pairs with `order`
    }

    /// Whether a loop was ordered and nothing has been told of it yet.
    pub(crate) fn owes_statistics(&self) -> bool {
        self.read(LoopStats::State.address()) == Some(regs::LOOP_RUNNING)
    }

    /// A loop begins: what is known of the last one goes.
    pub(crate) fn begin_loop(&self) {
        self.set_statistic(LoopStats::Ack, 0);
        self.set_statistic(LoopStats::State, regs::LOOP_RUNNING);
    }

    /// Tells what came of a loop.
    pub(crate) fn publish_loop(&self, counts: &LoopCounts) {
        let [low, high] = words_of(counts.windows);
        self.set_statistic(LoopStats::WindowsLow, low);
        self.set_statistic(LoopStats::WindowsHigh, high);
        let [low, high] = words_of(counts.responses);
        self.set_statistic(LoopStats::ResponsesLow, low);
        self.set_statistic(LoopStats::ResponsesHigh, high);
        for (register, count) in [
            (LoopStats::Errors, counts.send_errors),
            (LoopStats::Timeouts, counts.timeouts),
            (LoopStats::ResponseFailures, counts.failures),
        ] {
            self.set_statistic(register, u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.set_statistic(LoopStats::Magic, regs::LOOP_MAGIC);
        self.set_statistic(LoopStats::State, regs::LOOP_COMPLETE);
    }

    fn set_statistic(&self, register: LoopStats, value: u32) {
        if let Some(word) = self.loop_stats.word(register.address()) {
            word.store(value, Ordering::Release);
        }
    }
}

/// What came of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoopCounts {
    pub(crate) windows: u64,
    pub(crate) responses: u64,
    pub(crate) send_errors: u64,
    pub(crate) timeouts: u64,
    pub(crate) failures: u64,
}

impl LoopCounts {
    /// What a summary counts so far.
    pub(crate) fn of(summary: &Summary) -> Self {
        Self {
            windows: summary.windows,
            responses: summary.responses,
            send_errors: summary.send_errors.total(),
            timeouts: summary.timeouts.total(),
            failures: summary.failures.total(),
        }
    }

    /// What came after `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            windows: self.windows - earlier.windows,
            responses: self.responses - earlier.responses,
            send_errors: self.send_errors - earlier.send_errors,
            timeouts: self.timeouts - earlier.timeouts,
            failures: self.failures - earlier.failures,
        }
    }
}

/// The value of ENABLE, and how often it has changed. A host that repeats a write starts nothing twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Order {
    changes: u32,
    value: u32,
}

impl Order {
    pub(crate) fn runs(self) -> bool {
        self.value & regs::ENABLE_RUN_BIT != 0
    }

    pub(crate) fn loops(self) -> bool {
        self.value & regs::ENABLE_LOOP_BIT != 0
    }

    fn then(self, value: u32) -> Self {
        if value == self.value { self } else { Self { changes: self.changes.wrapping_add(1), value } }
    }

    fn pack(self) -> u64 {
        u64::from(self.changes) << 32 | u64::from(self.value)
    }

    fn unpack(packed: u64) -> Self {
        let [value, changes] = words_of(packed);
        Self { changes, value }
    }
}

/// The windows to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pass {
    pub(crate) windows: u32,
    /// 64-byte beats of a window.
    pub(crate) beats: u32,
    /// From window to window.
    pub(crate) spacing: Duration,
}

impl Pass {
    /// Which window of the playback memory window `k` of the pass is.
    #[allow(clippy::cast_possible_truncation)] // below `windows`
    pub(crate) fn index(&self, k: u64) -> u32 {
        (k % u64::from(self.windows)) as u32
    }
}

/// Where windows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) qpn: Qpn,
    pub(crate) rkey: Rkey,
    /// Byte address of page 0.
    pub(crate) base: u64,
    /// Bytes from page to page.
    pub(crate) stride: u64,
    pub(crate) pages: u32,
    /// Unspecified where the host has not written it.
    pub(crate) ip: Ipv4Addr,
}

impl Target {
    /// The page that window `k` of a pass goes to.
    #[allow(clippy::cast_possible_truncation)] // below `pages`
    pub(crate) fn page(&self, k: u64) -> u32 {
        (k % u64::from(self.pages)) as u32
    }

    /// The byte address of a page.
    pub(crate) fn address(&self, page: u32) -> u64 {
        self.base.wrapping_add(u64::from(page) * self.stride)
    }
}

/// Registers that only hold what was written.
struct Storage {
    base: u32,
    words: Box<[AtomicU32]>,
}

impl Storage {
    fn new(base: u32, words: u32) -> Self {
        Self { base, words: (0..words).map(|_| AtomicU32::new(0)).collect() }
    }

    fn word(&self, address: u32) -> Option<&AtomicU32> {
        self.words.get(self.index(address)?)
    }

    fn index(&self, address: u32) -> Option<usize> {
        Some(address.checked_sub(self.base)? as usize / 4)
    }
}

struct VirtualPort {
    base: u32,
    words: Storage,
    /// A bit per register written since the queue pair was last set to 0.
    written: AtomicU32,
}

impl VirtualPort {
    fn write(&self, address: u32, value: u32) -> Option<()> {
        self.words.word(address)?.store(value, Ordering::Relaxed);
        let written = match (self.words.index(address)?, value) {
            (0, 0) => 0,
            (index, _) => self.written.load(Ordering::Relaxed) | 1 << index,
        };
        self.written.store(written, Ordering::Release); // pairs with `target`
        Some(())
    }

    fn target(&self) -> Option<Target> {
        let needed = [Vp::Qp, Vp::Rkey, Vp::PageInc, Vp::MaxBuff];
        let needed = needed.into_iter().fold(0, |bits, register| bits | 1 << (register as u32 / 4));
        if self.written.load(Ordering::Acquire) & needed != needed {
            return None;
        }
        let base = u64::from(self.register(Vp::PageMsb)) << 32 | u64::from(self.register(Vp::PageLsb));
        Some(Target {
            qpn: Qpn::from_low_bits(self.register(Vp::Qp)),
            rkey: Rkey::new(self.register(Vp::Rkey)),
            base,
            stride: u64::from(self.register(Vp::PageInc)) * u64::from(PAGE_UNIT),
            pages: (self.register(Vp::MaxBuff) & regs::LAST_PAGE_MASK) + 1,
            ip: Ipv4Addr::from_bits(self.register(Vp::HostIp)),
        })
    }

    fn register(&self, register: Vp) -> u32 {
        self.words.word(register.at(self.base)).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

struct PlayerRegisters {
    /// A packed [`Order`].
    order: AtomicU64,
    words: Storage,
}

impl PlayerRegisters {
    fn new() -> Self {
        Self { order: AtomicU64::new(0), words: Storage::new(Player::Timer.address(), 3) }
    }

    fn read(&self, address: u32) -> Option<u32> {
        if address == Player::Enable.address() {
            return Some(Order::unpack(self.order.load(Ordering::Relaxed)).value);
        }
        self.words.word(address).map(|word| word.load(Ordering::Relaxed))
    }

    fn write(&self, address: u32, value: u32) -> Option<()> {
        self.words.word(address)?.store(value, Ordering::Relaxed);
        Some(())
    }

    fn register(&self, register: Player) -> u32 {
        self.read(register.address()).unwrap_or(0)
    }
}

/// The memory that the windows come from.
pub(crate) struct PlaybackRam {
    words: Box<[AtomicU32]>,
}

impl PlaybackRam {
    fn new() -> Self {
        Self { words: (0..PLAYBACK_RAM.banks * PLAYBACK_RAM.words).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Puts the bytes of `window` into `out`, as many as fit.
    pub(crate) fn assemble(&self, window: u32, beats: u32, out: &mut [u8]) {
        for (word, bytes) in (0..beats * PLAYBACK_RAM.banks).zip(out.chunks_mut(4)) {
            let (bank, column) = regs::playback_word(window, beats, word);
            let value = self.word(bank, column).load(Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
        }
    }

    fn word_at(&self, address: u32) -> Option<&AtomicU32> {
        let (bank, column) = PLAYBACK_RAM.locate(address)?;
        Some(self.word(bank, column))
    }

    fn word(&self, bank: u32, column: u32) -> &AtomicU32 {
        &self.words[(bank * PLAYBACK_RAM.words + column) as usize]
    }
}

/// Low word, high word.
fn words_of(value: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

fn check_places(vp_address: u32, hif_address: u32) -> Result<(), EmulatorError> {
    let vp = (VP_NAME, vp_address, VP_WORDS);
    let hif = (HIF_NAME, hif_address, 4);
    let taken: Vec<_> = PLAIN.into_iter().chain(FIXED).collect();
    check_place(vp, &taken)?;
    check_place(hif, &[taken, vec![vp]].concat())
}

fn check_place(
    (block, address, words): (&'static str, u32, u32),
    taken: &[(&'static str, u32, u32)],
) -> Result<(), EmulatorError> {
    let span = |base: u32, words: u32| u64::from(base)..u64::from(base) + 4 * u64::from(words);
    let wanted = span(address, words);
    let overlap = |other: &Range<u64>| wanted.start < other.end && other.start < wanted.end;
    let clash = taken.iter().find(|&&(_, base, words)| overlap(&span(base, words)));
    let other = match clash {
        Some(&(other, _, _)) => other,
        None if !address.is_multiple_of(4) => "boundary of a register",
        None if wanted.end > 1 << 32 => "end of the address space",
        None => return Ok(()),
    };
    Err(EmulatorError::Overlap { block, address, other })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VP: u32 = regs::VP_ADDRESS;

    fn registers() -> Registers {
        Registers::new(0x2606, VP, regs::EMULATOR_HIF_ADDRESS).expect("the default places are free")
    }

    fn write_all(registers: &Registers, writes: &[(u32, u32)]) {
        for &(address, value) in writes {
            assert_eq!(registers.write(address, value), Some(()), "{address:#x}");
        }
    }

    #[test]
    fn the_blocks_that_a_host_touches_hold_what_it_writes() {
        let registers = registers();
        let plain = [
            0x4,
            0x8,
            0x10C,
            0x110,
            0x188,
            0x204,
            0x22C,
            0x2080,
            0x2FFC,
            0x0100_000C,
            0x0120_0000,
            0x0804,
            0x080C,
            0x1000,
            0x102C,
            0x1034,
            0x5000_0004,
            0x5000_0010,
            0x5010_0000,
            0x5010_7FFC,
            0x4000_0000,
            0xE000_0020,
        ];
        for address in plain {
            write_all(&registers, &[(address, address ^ 0x55)]);
            assert_eq!(registers.read(address), Some(address ^ 0x55), "{address:#x}");
            assert_eq!(registers.read(address | 3), Some(address ^ 0x55));
        }
        assert_eq!(registers.read(0x80), Some(0x2606));
        assert_eq!(registers.read(0xE000_0000), Some(regs::LOOP_MAGIC));
    }

    #[test]
    fn a_host_may_start_up_and_reset() {
        let starting = [
            0x110, 0x114, 0x118, 0x10C, 0x104, 0x224, 0x204, 0x208, 0x20C, 0x228, 0x22C, 0x210, 0x214, 0x218,
            0x21C, 0x220, 0x2080, 0x8, 0x4,
        ];
        write_all(&registers(), &starting.map(|address| (address, 1)));
    }

    #[test]
    fn elsewhere_is_no_register() {
        let registers = registers();
        let nothing =
            [0x0, 0xC, 0x1FC, 0x1038, 0x0FFC, 0x0810, 0x4000_0004, 0x5000_0000, 0x5000_0014, 0x5010_8000];
        for address in nothing.into_iter().chain([0x4019_8000, 0xE000_0028, 0xDEAD_0000, u32::MAX]) {
            assert_eq!((registers.read(address), registers.write(address, 1)), (None, None), "{address:#x}");
        }
        for read_only in [0x80, 0x84, 0x4000_0080, 0x4000_0084, 0x4010_0000] {
            assert!(registers.read(read_only).is_some() && registers.write(read_only, 1).is_none());
        }
    }

    #[test]
    fn movable_blocks_must_not_lie_on_others() {
        let clash = |vp, hif| match Registers::new(0, vp, hif) {
            Err(EmulatorError::Overlap { block, other, .. }) => Some((block, other)),
            _ => None,
        };
        assert_eq!(clash(0x1000, regs::HIF_ADDRESS), None);
        assert_eq!(clash(0x1040, 0x0800), None);
        assert_eq!(clash(0x1000, 0x1030), Some((HIF_NAME, VP_NAME)));
        assert_eq!(clash(0x1FE0, 0x0800), Some((VP_NAME, "event sequencer")));
        assert_eq!(clash(0x1000, 0x5010_0000), Some((HIF_NAME, "playback memory")));
        assert_eq!(clash(0x1002, 0x0800), Some((VP_NAME, "boundary of a register")));
        assert_eq!(clash(0xFFFF_FFF0, 0x0800), Some((VP_NAME, "end of the address space")));
    }

    #[test]
    fn the_ring_is_known_once_all_of_it_is_written() {
        let registers = registers();
        let ring = [
            (Vp::HostIp, 0x7F00_0009),
            (Vp::Qp, 0x123),
            (Vp::Rkey, 0xCAFE),
            (Vp::PageLsb, 0),
            (Vp::PageMsb, 2),
            (Vp::PageInc, 3),
            (Vp::MaxBuff, 127),
        ];
        for (register, value) in ring {
            assert_eq!(registers.target(), None);
            write_all(&registers, &[(register.at(VP), value)]);
        }
        let target = registers.target().expect("written");
        let expected = Target {
            qpn: Qpn::from_low_bits(0x123),
            rkey: Rkey::new(0xCAFE),
            base: 2 << 32,
            stride: 384,
            pages: 128,
            ip: Ipv4Addr::new(127, 0, 0, 9),
        };
        assert_eq!(target, expected);
        assert_eq!((target.page(127), target.page(128), target.address(2)), (127, 0, (2 << 32) + 768));

        write_all(&registers, &[(Vp::Qp.at(VP), 0)]);
        assert_eq!(registers.target(), None, "unconfigured");
        write_all(&registers, &[(Vp::Qp.at(VP), 0x124)]);
        assert_eq!(registers.target(), None, "the key is still the old one's");
    }

    #[test]
    fn a_repeated_enable_is_one_order() {
        let registers = registers();
        let enable = |value| {
            write_all(&registers, &[(Player::Enable.address(), value)]);
            registers.order()
        };
        let single = enable(regs::ENABLE_SINGLE);
        assert!(single.runs() && !single.loops());
        assert_eq!(enable(regs::ENABLE_SINGLE), single);
        let looping = enable(regs::ENABLE_LOOP);
        assert!(looping.runs() && looping.loops() && looping != single);
        assert!(!enable(0).runs());
        assert_ne!(enable(regs::ENABLE_SINGLE), single);
    }

    #[test]
    fn passes_that_the_memory_holds() {
        let registers = registers();
        let pass = |windows, size| {
            let timer = 322 * 120;
            let writes =
                [(Player::WindowNumber, windows), (Player::WindowSize, size), (Player::Timer, timer)];
            write_all(&registers, &writes.map(|(register, value)| (register.address(), value)));
            registers.pass().ok()
        };
        let spacing = Duration::from_micros(120);
        assert_eq!(pass(512, 64), Some(Pass { windows: 512, beats: 1, spacing }));
        assert_eq!(pass(1, 512 * 64), Some(Pass { windows: 1, beats: 512, spacing }));
        for (windows, size) in [(513, 64), (257, 128), (0, 64), (1, 0), (1, 65), (u32::MAX, 0x8000_0000)] {
            assert_eq!(pass(windows, size), None, "{windows} x {size}");
        }
    }

    #[test]
    fn loop_statistics_are_64_bits_in_two_words() {
        let registers = registers();
        write_all(
            &registers,
            &[(LoopStats::Ack.address(), 1), (Player::Enable.address(), regs::ENABLE_LOOP)],
        );
        assert!(registers.owes_statistics());
        registers.publish_loop(&LoopCounts {
            windows: 0x1_0000_0002,
            responses: 0x3_0000_0004,
            send_errors: 5,
            timeouts: 6,
            failures: 1 << 40,
        });
        let block: Vec<Option<u32>> =
            (0..10).map(|word| registers.read(LoopStats::BASE + 4 * word)).collect();
        let expected = [regs::LOOP_MAGIC, regs::LOOP_COMPLETE, 2, 1, 4, 3, 5, 6, 0, u32::MAX];
        assert_eq!(block, expected.map(Some));
        assert!(!registers.owes_statistics());
        write_all(&registers, &[(Player::Enable.address(), regs::ENABLE_LOOP)]);
        assert!(!registers.owes_statistics(), "the same order");
    }

    proptest! {
        #[test]
        fn a_message_written_word_by_word_is_assembled(
            beats in 1..5_u32, window in 0..100_u32, bytes in prop::collection::vec(any::<u8>(), 256), cut in 1..256_usize,
        ) {
            let registers = registers();
            let size = (beats * regs::BEAT_SIZE) as usize;
            for (word, bytes) in (0..).zip(bytes[..size].chunks_exact(4)) {
                let (bank, column) = regs::playback_word(window, beats, word);
                let address = PLAYBACK_RAM.address(bank, column).expect("inside");
                registers.write(address, u32::from_le_bytes(bytes.try_into().expect("a word")));
            }
            let mut whole = vec![0; size];
            registers.playback.assemble(window, beats, &mut whole);
            prop_assert_eq!(&whole, &bytes[..size]);
            let mut part = vec![0; cut.min(size)];
            registers.playback.assemble(window, beats, &mut part);
            prop_assert_eq!(&part[..], &bytes[..part.len()]);
        }
    }
}
