//! The register file: what the control plane reads and writes, and the player obeys.
//!
//! The control plane's thread is the only writer of registers. The player sees everything that was written before
//! the write of ENABLE that it acts on, and a virtual port only as a whole: between two writes of it.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use roce_core::{Psn, Qpn, Rkey};
use roce_rendezvous::hsb::regs::{
    self, CAPTURE_RAM, Capture as CaptureRegister, HIF_ADDRESS, Hif, LoopStats, OldVp, PAGE_UNIT,
    PLAYBACK_RAM, Player, VP_ADDRESS, VP_STRIDE, Vp,
};

use crate::blocks::{Blocks, HIF_BYTES, VP_BYTES};
use crate::capture::Capture;
use crate::error::EmulatorError;
use crate::personality::{Personality, has_old_layout};
use crate::stream::{Pages, Target};
use crate::summary::{PassError, Summary};

const VP_NAME: &str = "virtual port";
const HIF_NAME: &str = "host interface";
/// Units of a page's number that the FPGA reckons with.
const STRIDE_MASK: u32 = 0x3FF_FFFF;
/// Pages that a packet's payload may have, as the FPGA and the emulator count it.
const FPGA_PACKET_MASK: u32 = 0xFF;
const LENIENT_PACKET_MASK: u32 = 0x1FF;
/// Of the register of the host's UDP port.
const UDP_PORT_MASK: u32 = 0xFFFF;

/// Ranges that belong to the player and the capture.
const FIXED: [(&str, u32, u32); 5] = [
    ("player", Player::BASE, 5),
    ("playback memory", PLAYBACK_RAM.base, PLAYBACK_RAM.banks << (PLAYBACK_RAM.bank_shift - 2)),
    ("capture", CaptureRegister::BASE, 34),
    ("capture memory", CAPTURE_RAM.base, CAPTURE_RAM.banks << (CAPTURE_RAM.bank_shift - 2)),
    ("loop statistics", LoopStats::BASE, 10),
];

/// What the register file is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) personality: Personality,
    pub(crate) hsb_ip_version: u16,
    /// Where the virtual port that streams is found.
    pub(crate) vp_address: u32,
    /// Where the host interface of data plane 0 is found too.
    pub(crate) hif_address: u32,
}

/// The register file.
pub(crate) struct Registers {
    layout: Layout,
    blocks: Blocks,
    /// The virtual port that streams.
    vp: VirtualPort,
    player: PlayerRegisters,
    pub(crate) playback: PlaybackRam,
    pub(crate) capture: Capture,
    loop_stats: Storage,
    /// The order that began the loop which the statistics are of. Held while they change.
    latest_loop: Mutex<Option<Order>>,
    resets: AtomicU32,
    down: AtomicBool,
}

impl Registers {
    /// Refuses a virtual port or host interface that lies on something else.
    pub(crate) fn new(layout: Layout) -> Result<Self, EmulatorError> {
        let blocks = Blocks::new(layout.personality, layout.hsb_ip_version);
        let vp = VirtualPort::at(layout);
        check_places(layout, &vp, &blocks)?;
        let registers = Self {
            layout,
            blocks,
            vp,
            player: PlayerRegisters::new(),
            playback: PlaybackRam::new(),
            capture: Capture::new(),
            loop_stats: Storage::new(LoopStats::BASE, 10),
            latest_loop: Mutex::default(),
            resets: AtomicU32::new(0),
            down: AtomicBool::new(false),
        };
        registers.set_statistic(LoopStats::Magic, regs::LOOP_MAGIC);
        Ok(registers)
    }

    /// `None` where no register is. The low two bits of an address do not count.
    pub(crate) fn read(&self, address: u32) -> Option<u32> {
        let address = self.canonical(address & !3);
        let memory = || {
            let word = self.loop_stats.word(address).or_else(|| self.playback.word_at(address));
            word.map(|word| word.load(Ordering::Acquire))
        };
        let ours = self.player.read(address).or_else(|| self.capture.read(address));
        ours.or_else(memory).or_else(|| self.blocks.read(address))
    }

    /// `None` where no register is, or none that can be written.
    pub(crate) fn write(&self, address: u32, value: u32) -> Option<()> {
        let address = self.canonical(address & !3);
        if address == Player::Enable.address() {
            self.enable(value);
            return Some(());
        }
        if self.vp.concerns(address) {
            return self.vp.change(address, value, &self.blocks);
        }
        if self.player.write(address, value).or_else(|| self.blocks.write(address, value)).is_some() {
            return Some(());
        }
        match self.loop_stats.word(address).or_else(|| self.playback.word_at(address)) {
            Some(word) => {
                word.store(value, Ordering::Release);
                Some(())
            }
            None => self.capture.write(address, value),
        }
    }

    /// Where the FPGA itself has what lies at an address that was asked for.
    fn canonical(&self, address: u32) -> u32 {
        let moved = |from: u32, to: u32, bytes: u32| {
            let offset = address.checked_sub(from).filter(|&offset| offset < bytes)?;
            Some(to + offset)
        };
        let vp = moved(self.layout.vp_address, self.vp.base, VP_BYTES);
        vp.or_else(|| moved(self.layout.hif_address, HIF_ADDRESS, HIF_BYTES)).unwrap_or(address)
    }

    /// Forgets all that was written, as a device that restarts does. It is down until [`restarted`](Self::restarted).
    pub(crate) fn restart(&self) {
        self.down.store(true, Ordering::Release);
        self.enable(regs::ENABLE_OFF);
        self.vp.forget(&self.blocks);
        self.player.reset();
        self.playback.reset();
        self.capture.restart();
        let mut latest_loop = self.latest_loop();
        *latest_loop = None;
        self.loop_stats.reset();
        self.set_statistic(LoopStats::Magic, regs::LOOP_MAGIC);
        drop(latest_loop);
        self.resets.fetch_add(1, Ordering::Release); // pairs with `resets`
    }

    /// The device is up again.
    pub(crate) fn restarted(&self) {
        self.down.store(false, Ordering::Release);
    }

    /// Whether the device is restarting.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    /// How often the device has restarted.
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Ordering::Acquire)
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

    /// Where frames go, once all of it has been written.
    pub(crate) fn target(&self) -> Option<Target> {
        self.vp.target(&self.blocks)
    }

    /// How often what [`target`](Self::target) tells may have changed.
    pub(crate) fn target_changes(&self) -> u32 {
        self.vp.changes.load(Ordering::Acquire)
    }

    /// Tells the host the PSN of the next packet.
    pub(crate) fn set_psn(&self, psn: Psn) {
        if self.layout.personality == Personality::Fpga {
            self.blocks.set(Vp::Psn.at(self.vp.base), psn.get());
        }
    }

    /// A loop is forgotten as soon as the next one is ordered, so that nobody takes the one for the other.
    fn enable(&self, value: u32) {
        let order = self.order();
        let next = order.then(value);
        let mut latest_loop = self.latest_loop();
        if next != order && next.runs() && next.loops() {
            *latest_loop = Some(next);
            self.set_statistic(LoopStats::Ack, 0);
            self.set_statistic(LoopStats::State, regs::LOOP_RUNNING);
        }
        self.player.order.store(next.pack(), Ordering::Release); // pairs with `order`
    }

    /// Whether a loop was ordered and nothing has been told of it yet.
    pub(crate) fn owes_statistics(&self) -> bool {
        self.read(LoopStats::State.address()) == Some(regs::LOOP_RUNNING)
    }

    /// Tells what came of a loop, by a player that is done with `order`. Nothing once the host has ordered a later loop,
    /// which this would be taken for.
    pub(crate) fn publish_loop(&self, order: Order, counts: &LoopCounts) {
        let latest_loop = self.latest_loop();
        if latest_loop.is_none_or(|latest| latest.is_after(order)) {
            return;
        }
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

    fn latest_loop(&self) -> MutexGuard<'_, Option<Order>> {
        self.latest_loop.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn is_after(self, other: Self) -> bool {
        self.changes.wrapping_sub(other.changes).cast_signed() > 0
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
        self.words.get(address.checked_sub(self.base)? as usize / 4)
    }

    fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Release));
    }
}

/// The virtual port that streams, and its bit in its host interface's mask.
struct VirtualPort {
    personality: Personality,
    base: u32,
    mask: u32,
    has_old_layout: bool,
    /// A bit per register written since the queue pair was last set to 0.
    written: AtomicU32,
    /// How often the ring's registers have been written.
    configured: AtomicU32,
    /// Odd while a register is being written.
    changes: AtomicU32,
}

impl VirtualPort {
    fn at(layout: Layout) -> Self {
        let ports = match layout.personality {
            Personality::Fpga => regs::VP_COUNT,
            Personality::Lenient => 1,
        };
        let index = layout.vp_address.checked_sub(VP_ADDRESS).map(|offset| offset / VP_STRIDE);
        let index = index.filter(|&index| index < ports).unwrap_or(0);
        Self {
            personality: layout.personality,
            base: VP_ADDRESS + index * VP_STRIDE,
            mask: 1 << index,
            has_old_layout: has_old_layout(layout.hsb_ip_version),
            written: AtomicU32::new(0),
            configured: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// Its own registers, and those of the host interface.
    fn concerns(&self, address: u32) -> bool {
        let within = |base: u32, bytes| (base..base + bytes).contains(&address);
        within(self.base, VP_BYTES) || within(HIF_ADDRESS, HIF_BYTES)
    }

    fn change(&self, address: u32, value: u32, blocks: &Blocks) -> Option<()> {
        self.begin_change();
        let written = blocks.write(address, value);
        let offset = address.checked_sub(self.base).filter(|&offset| offset < VP_BYTES);
        if let (Some(offset), Some(())) = (offset, written) {
            self.note(offset, value);
        }
        self.end_change();
        written
    }

    fn begin_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release); // what is written from here on is not seen before; pairs with `target`
    }

    fn end_change(&self) {
        self.changes.fetch_add(1, Ordering::Release); // pairs with `target`
    }

    fn note(&self, offset: u32, value: u32) {
        let written = match (offset, value) {
            (0, 0) => 0,
            _ => self.written.load(Ordering::Relaxed) | 1 << (offset / 4),
        };
        self.written.store(written, Ordering::Relaxed);
        if offset <= Vp::MaxBuff as u32 {
            self.configured.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn forget(&self, blocks: &Blocks) {
        self.begin_change();
        blocks.reset();
        self.written.store(0, Ordering::Relaxed);
        self.end_change();
    }

    /// Read between two writes; a write takes no longer than a few of them.
    fn target(&self, blocks: &Blocks) -> Option<Target> {
        loop {
            let before = self.changes.load(Ordering::Acquire);
            let target = self.read(blocks);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && before == self.changes.load(Ordering::Relaxed) {
                return target;
            }
            thread::yield_now();
        }
    }

    fn read(&self, blocks: &Blocks) -> Option<Target> {
        let ring = if self.has_old_layout { OldVp::BufferMask as u32 } else { Vp::MaxBuff as u32 };
        let needed = [Vp::Qp as u32, Vp::Rkey as u32, ring];
        let needed = needed.into_iter().fold(0, |bits, offset| bits | 1 << (offset / 4));
        if self.written.load(Ordering::Relaxed) & needed != needed {
            return None;
        }
        let vp = |register: Vp| blocks.get(register.at(self.base));
        let port = vp(Vp::HostUdpPort);
        let (packet_mask, streams) = match self.personality {
            Personality::Fpga => (FPGA_PACKET_MASK, blocks.get(Hif::VpMask.at(HIF_ADDRESS)) & self.mask != 0),
            Personality::Lenient => (LENIENT_PACKET_MASK, port & UDP_PORT_MASK != 0),
        };
        Some(Target {
            qpn: Qpn::from_low_bits(vp(Vp::Qp)),
            rkey: Rkey::new(vp(Vp::Rkey)),
            pages: self.pages(blocks),
            frame_size: vp(Vp::BufferLength),
            packet: (blocks.get(Hif::PacketSize.at(HIF_ADDRESS)) & packet_mask) * PAGE_UNIT,
            metadata: port & regs::METADATA_OFF == 0,
            ip: Ipv4Addr::from_bits(vp(Vp::HostIp)),
            streams,
            configured: self.configured.load(Ordering::Relaxed),
        })
    }

    fn pages(&self, blocks: &Blocks) -> Pages {
        if self.has_old_layout {
            let address = |page: OldVp| u64::from(blocks.get(page.at(self.base))) * u64::from(PAGE_UNIT);
            let used = blocks.get(OldVp::BufferMask.at(self.base));
            return Pages::Listed { addresses: OldVp::PAGES.map(address), used };
        }
        let vp = |register: Vp| blocks.get(register.at(self.base));
        let [pages, unaligned] = [vp(Vp::MaxBuff), vp(Vp::PageLsb)];
        Pages::Strided {
            base: u64::from(vp(Vp::PageMsb)) << 32 | u64::from(unaligned & !(PAGE_UNIT - 1)),
            stride: u64::from(vp(Vp::PageInc) & STRIDE_MASK) * u64::from(PAGE_UNIT),
            first: pages >> 16 & regs::LAST_PAGE_MASK,
            last: pages & regs::LAST_PAGE_MASK,
        }
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

    fn reset(&self) {
        self.words.reset();
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

    fn reset(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
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

/// A block that was moved must lie on nothing else.
fn check_places(layout: Layout, vp: &VirtualPort, blocks: &Blocks) -> Result<(), EmulatorError> {
    let Layout { vp_address, hif_address, .. } = layout;
    if vp_address != vp.base {
        check_place((VP_NAME, vp_address, VP_BYTES), &FIXED, blocks)?;
    }
    if hif_address != HIF_ADDRESS {
        let taken = [&FIXED[..], &[(VP_NAME, vp_address, VP_BYTES / 4)]].concat();
        check_place((HIF_NAME, hif_address, HIF_BYTES), &taken, blocks)?;
    }
    Ok(())
}

fn check_place(
    (block, address, bytes): (&'static str, u32, u32),
    taken: &[(&'static str, u32, u32)],
    blocks: &Blocks,
) -> Result<(), EmulatorError> {
    let refuse = |other| Err(EmulatorError::Overlap { block, address, other });
    let Some(end) = address.checked_add(bytes) else { return refuse("end of the address space") };
    let overlaps = |other: Range<u32>| address < other.end && other.start < end;
    let clash = taken.iter().find(|&&(_, base, words)| overlaps(base..base + 4 * words));
    match clash {
        Some(&(other, _, _)) => refuse(other),
        None if !address.is_multiple_of(4) => refuse("boundary of a register"),
        None if blocks.occupies(&(address..end)) => refuse("FPGA's own registers"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VP: u32 = VP_ADDRESS;

    fn layout(personality: Personality, hsb_ip_version: u16) -> Layout {
        let hif_address = regs::EMULATOR_HIF_ADDRESS;
        Layout { personality, hsb_ip_version, vp_address: VP, hif_address }
    }

    fn registers_of(personality: Personality) -> Registers {
        let layout = layout(personality, personality.hsb_ip_version());
        Registers::new(layout).expect("the default places are free")
    }

    fn registers() -> Registers {
        registers_of(Personality::Fpga)
    }

    fn write_all(registers: &Registers, writes: &[(u32, u32)]) {
        for &(address, value) in writes {
            assert_eq!(registers.write(address, value), Some(()), "{address:#x}");
        }
    }

    #[test]
    fn the_blocks_that_a_host_touches_hold_what_it_writes() {
        for personality in [Personality::Fpga, Personality::Lenient] {
            let registers = registers_of(personality);
            for address in [
                0x10C,
                0x2080,
                0x0100_000C,
                0x0120_0000,
                0x0804,
                0x080C,
                0x1000,
                0x102C,
                0x5000_0004,
                0x5000_0010,
                0x5010_0000,
                0x5010_7FFC,
                0x4000_0000,
                0xE000_0020,
            ] {
                write_all(&registers, &[(address, address ^ 0x55)]);
                assert_eq!(registers.read(address), Some(address ^ 0x55), "{address:#x}");
                assert_eq!(registers.read(address | 3), Some(address ^ 0x55));
            }
            assert_eq!(registers.read(0x80), Some(personality.hsb_ip_version().into()));
            assert_eq!(registers.read(0xE000_0000), Some(regs::LOOP_MAGIC));
        }
    }

    #[test]
    fn elsewhere_is_no_register() {
        for personality in [Personality::Fpga, Personality::Lenient] {
            let registers = registers_of(personality);
            let nothing = [0xFFC, 0x0814, 0x4000_0004, 0x5000_0000, 0x5000_0014, 0x5010_8000, 0x4019_8000];
            for address in nothing.into_iter().chain([0xE000_0028, 0xDEAD_0000, u32::MAX]) {
                let access = (registers.read(address), registers.write(address, 1));
                assert_eq!(access, (None, None), "{address:#x}");
            }
            for read_only in [0x4000_0080, 0x4000_0084, 0x4010_0000] {
                assert!(registers.read(read_only).is_some() && registers.write(read_only, 1).is_none());
            }
        }
    }

    #[test]
    fn moved_blocks_are_found_at_both_places() {
        let layout = Layout { vp_address: 0x5000, ..layout(Personality::Fpga, 0x2606) };
        let registers = Registers::new(layout).expect("free places");
        let pairs = [(0x0804, 0x0200_0304), (0x0810, 0x0200_0310), (0x5000, 0x1000), (0x502C, 0x102C)];
        for (moved, own) in pairs {
            write_all(&registers, &[(moved, 7)]);
            assert_eq!((registers.read(moved), registers.read(own)), (Some(7), Some(7)), "{moved:#x}");
            write_all(&registers, &[(own, 8)]);
            assert_eq!(registers.read(moved), Some(8), "{moved:#x}");
        }
    }

    #[test]
    fn movable_blocks_must_not_lie_on_others() {
        const OWN: &str = "FPGA's own registers";
        let clash = |personality, vp_address, hif_address| {
            let layout = Layout { vp_address, hif_address, ..layout(personality, 0x2606) };
            match Registers::new(layout) {
                Err(EmulatorError::Overlap { block, other, .. }) => Some((block, other)),
                _ => None,
            }
        };
        let fpga = |vp, hif| clash(Personality::Fpga, vp, hif);
        assert_eq!(fpga(0x1000, HIF_ADDRESS), None);
        assert_eq!(fpga(0x17C0, 0x0800), None);
        assert_eq!(fpga(0x1800, 0x0800), None);
        assert_eq!(fpga(0x1030, 0x0800), Some((VP_NAME, OWN)));
        assert_eq!(fpga(0x1000, 0x17F0), Some((HIF_NAME, OWN)));
        assert_eq!(fpga(0x1FE0, 0x0800), Some((VP_NAME, OWN)));
        assert_eq!(fpga(0x5000, 0x5030), Some((HIF_NAME, VP_NAME)));
        assert_eq!(fpga(0x1000, 0x5010_0000), Some((HIF_NAME, "playback memory")));
        assert_eq!(fpga(0x1802, 0x0800), Some((VP_NAME, "boundary of a register")));
        assert_eq!(fpga(0xFFFF_FFF0, 0x0800), Some((VP_NAME, "end of the address space")));
        let lenient = |vp, hif| clash(Personality::Lenient, vp, hif);
        assert_eq!(lenient(0x1040, 0x0800), None);
        assert_eq!(lenient(0x1010, 0x0800), Some((VP_NAME, OWN)));
    }

    /// What a host writes for a ring of 128 pages of 384 bytes, but for the mask.
    const RING: [(Vp, u32); 9] = [
        (Vp::BufferLength, 64),
        (Vp::HostIp, 0x7F00_0009),
        (Vp::HostUdpPort, 4791),
        (Vp::Qp, 0x123),
        (Vp::Rkey, 0xCAFE),
        (Vp::PageLsb, 0x80),
        (Vp::PageMsb, 2),
        (Vp::PageInc, 3),
        (Vp::MaxBuff, 1 << 16 | 127),
    ];

    fn write_ring(registers: &Registers) {
        for (register, value) in RING {
            assert_eq!(registers.target(), None);
            write_all(registers, &[(register.at(VP), value)]);
        }
    }

    fn target() -> Target {
        Target {
            qpn: Qpn::from_low_bits(0x123),
            rkey: Rkey::new(0xCAFE),
            pages: Pages::Strided { base: (2 << 32) + 0x80, stride: 384, first: 1, last: 127 },
            frame_size: 64,
            packet: 0xCE * 128,
            metadata: true,
            ip: Ipv4Addr::new(127, 0, 0, 9),
            streams: false,
            configured: 6,
        }
    }

    #[test]
    fn the_ring_is_known_once_all_of_it_is_written() {
        let registers = registers();
        write_ring(&registers);
        assert_eq!(registers.target(), Some(target()), "the size of packets is what a reset leaves");

        let before = registers.target_changes();
        write_all(&registers, &[(0x0200_0304, 11), (0x102C, 4791 | regs::METADATA_OFF), (0x080C, 1)]);
        assert_ne!(registers.target_changes(), before);
        let streaming = Target { packet: 1408, metadata: false, streams: true, ..target() };
        assert_eq!(registers.target(), Some(streaming));
        write_all(&registers, &[(0x080C, 0xFFFF_FFFE)]);
        assert!(registers.target().is_some_and(|target| !target.streams), "another port's bits");

        write_all(&registers, &[(Vp::Qp.at(VP), 0)]);
        assert_eq!(registers.target(), None, "unconfigured");
        write_all(&registers, &[(Vp::Qp.at(VP), 0x124)]);
        assert_eq!(registers.target(), None, "the key is still the old one's");
    }

    #[test]
    fn the_emulator_has_no_use_for_the_mask() {
        let registers = registers_of(Personality::Lenient);
        write_ring(&registers);
        write_all(&registers, &[(0x0804, 0x20B)]);
        let streaming = Target { packet: 11 * 128, streams: true, ..target() };
        assert_eq!(registers.target(), Some(streaming), "and counts a packet's bytes with 16 bits");
        write_all(&registers, &[(0x102C, regs::METADATA_OFF)]);
        assert!(registers.target().is_some_and(|target| !target.streams), "no port to send to");
    }

    #[test]
    fn another_virtual_port_has_another_bit() {
        let layout = Layout { vp_address: 0x1080, ..layout(Personality::Fpga, 0x2606) };
        let registers = Registers::new(layout).expect("a port of the FPGA");
        write_all(&registers, &RING.map(|(register, value)| (register.at(0x1080), value)));
        let streams = |mask| {
            write_all(&registers, &[(0x0200_030C, mask)]);
            registers.target().expect("written").streams
        };
        assert_eq!([1, 2, 4, 6].map(streams), [false, false, true, true]);
    }

    #[test]
    fn old_versions_have_a_register_per_page() {
        let registers = Registers::new(layout(Personality::Fpga, 0x2510)).expect("free places");
        write_all(
            &registers,
            &[(Vp::Qp.at(VP), 5), (Vp::Rkey.at(VP), 6), (0x1008, 1), (0x100C, 0x80), (0x1010, 3)],
        );
        assert_eq!(registers.target(), None);
        write_all(&registers, &[(0x101C, 0b111)]);
        let expected = Pages::Listed { addresses: [0x80, 0x4000, 0x180, 0], used: 0b111 };
        assert_eq!(registers.target().map(|target| target.pages), Some(expected));
    }

    #[test]
    fn a_restart_forgets_everything() {
        let registers = registers();
        write_ring(&registers);
        write_all(
            &registers,
            &[
                (0x080C, 1),
                (Player::Timer.address(), 1),
                (PLAYBACK_RAM.base, 2),
                (CaptureRegister::Control.address(), regs::CAPTURE_ENABLE),
                (LoopStats::Ack.address(), 3),
                (Player::Enable.address(), regs::ENABLE_SINGLE),
            ],
        );
        registers.set_psn(Psn::new(9));
        assert_eq!(registers.read(0x103C), Some(9));
        let order = registers.order();
        registers.restart();
        assert!(registers.is_down() && registers.resets() == 1);
        assert_eq!(registers.target(), None);
        assert_ne!(registers.order(), order);
        let mut addresses = RING.map(|(register, _)| register.at(VP)).to_vec();
        addresses.extend([
            0x103C,
            0x080C,
            Player::Timer.address(),
            Player::Enable.address(),
            PLAYBACK_RAM.base,
        ]);
        addresses.extend([CaptureRegister::Control.address(), LoopStats::Ack.address()]);
        for address in addresses {
            assert_eq!(registers.read(address), Some(0), "{address:#x}");
        }
        assert_eq!(registers.read(LoopStats::Magic.address()), Some(regs::LOOP_MAGIC));
        registers.restarted();
        assert!(!registers.is_down());
    }

    /// A target is never half of one configuration and half of another: a reader waits for the end of a change.
    #[test]
    fn targets_are_read_between_changes() {
        let registers = registers();
        write_ring(&registers);
        let set = |register: Vp, value| registers.blocks.set(register.at(VP), value);
        for round in 1..50 {
            let reading = AtomicBool::new(false);
            registers.vp.begin_change();
            set(Vp::PageMsb, round);
            let pages = thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    reading.store(true, Ordering::Relaxed);
                    registers.target().map(|target| target.pages)
                });
                while !reading.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                // Time for one that does not wait.
                (0..100).for_each(|_| thread::yield_now());
                set(Vp::PageLsb, round << 7);
                registers.vp.end_change();
                reader.join().expect("a reader")
            });
            let Some(Pages::Strided { base, .. }) = pages else { panic!("{pages:?}") };
            assert_eq!(base, u64::from(round) << 32 | u64::from(round) << 7);
        }
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
        let order = registers.order();
        let counts = LoopCounts {
            windows: 0x1_0000_0002,
            responses: 0x3_0000_0004,
            send_errors: 5,
            timeouts: 6,
            failures: 1 << 40,
        };
        registers.publish_loop(order, &counts);
        let block: Vec<Option<u32>> =
            (0..10).map(|word| registers.read(LoopStats::BASE + 4 * word)).collect();
        let expected = [regs::LOOP_MAGIC, regs::LOOP_COMPLETE, 2, 1, 4, 3, 5, 6, 0, u32::MAX];
        assert_eq!(block, expected.map(Some));
        assert!(!registers.owes_statistics());
        write_all(&registers, &[(Player::Enable.address(), regs::ENABLE_LOOP)]);
        assert!(!registers.owes_statistics(), "the same order");
    }

    #[test]
    fn a_loop_is_not_taken_for_a_later_one() {
        let registers = registers();
        let order = |value| {
            write_all(&registers, &[(Player::Enable.address(), value)]);
            registers.order()
        };
        let told = || {
            let windows = registers.read(LoopStats::WindowsLow.address());
            (!registers.owes_statistics()).then_some(windows)
        };
        let counts = LoopCounts { windows: 9, ..LoopCounts::default() };
        let first = order(regs::ENABLE_LOOP);
        order(regs::ENABLE_OFF);
        order(regs::ENABLE_LOOP);
        registers.publish_loop(first, &counts);
        assert_eq!(told(), None, "the later loop has not ended");
        let off = order(regs::ENABLE_OFF);
        registers.publish_loop(first, &counts);
        assert_eq!(told(), None, "nor is it the one that has");
        registers.publish_loop(off, &LoopCounts::default());
        assert_eq!(told(), Some(Some(0)));

        let last = order(regs::ENABLE_LOOP);
        registers.restart();
        registers.publish_loop(last, &counts);
        let state = registers.read(LoopStats::State.address());
        assert!(state != Some(regs::LOOP_COMPLETE), "a device that restarts forgets");
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
