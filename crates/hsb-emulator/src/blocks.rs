//! The registers that a host finds: which there are, and what they hold after a reset.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use roce_rendezvous::hsb::regs::{
    self, HIF_ADDRESS, HIF_STRIDE, SIF_ADDRESS, SIF_STRIDE, VP_ADDRESS, VP_STRIDE,
};

use crate::personality::{Personality, has_old_layout};

/// What an FPGA's registers read as where a block has none.
pub const UNDEFINED: u32 = 0xBADA_DD12;

/// Bytes of a virtual port's registers, to the last there is.
pub(crate) const VP_BYTES: u32 = VP_STRIDE;
/// Bytes of a host interface's registers.
pub(crate) const HIF_BYTES: u32 = 0x14;
/// The host interfaces' common registers, right below those of data plane 0.
const HIF_COMMON: u32 = 0x0200_0000;
const PLANES: u32 = 2;
const SENSORS: u32 = 4;
const CHANNELS: u32 = 2;
const CHANNEL_STRIDE: u32 = 0x1_0000;
const I2C: u32 = 0x0300_0200;
/// Of the emulator: takes every write, and reads 0.
const STUB: u32 = 0x7000_0000;

/// What a host may do with a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Holds what was written.
    Stored,
    ReadOnly,
    WriteOnly,
    /// Takes what is written, and reads 0.
    Stub,
}

/// Registers in a row.
#[derive(Debug)]
struct Span {
    base: u32,
    access: Access,
    words: Box<[AtomicU32]>,
}

impl Span {
    fn word(&self, address: u32) -> Option<&AtomicU32> {
        self.words.get(address.checked_sub(self.base)? as usize / 4)
    }

    fn reset(&self) {
        for (address, word) in (self.base..).step_by(4).zip(&self.words) {
            word.store(reset_value(address), Ordering::Release);
        }
    }
}

/// An FPGA's blocks of registers. Addresses are multiples of 4.
#[derive(Debug)]
pub(crate) struct Blocks {
    spans: Vec<Span>,
    /// Where an FPGA answers whether there is a register or not.
    answering: Vec<Range<u32>>,
}

impl Blocks {
    pub(crate) fn new(personality: Personality, hsb_ip_version: u16) -> Self {
        let mut blocks = Self { spans: Vec::new(), answering: Vec::new() };
        match personality {
            Personality::Fpga => blocks.add_fpga(hsb_ip_version),
            Personality::Lenient => blocks.add_lenient(),
        }
        for (address, value) in
            [(regs::VERSION, u32::from(hsb_ip_version)), (regs::FPGA_CRC, personality.fpga_crc().into())]
        {
            blocks.add(address, 1, Access::ReadOnly);
            blocks.set(address, value);
        }
        blocks
    }

    /// After this everything but what is told of the FPGA itself holds what it held at first.
    pub(crate) fn reset(&self) {
        let told = |span: &&Span| ![regs::VERSION, regs::FPGA_CRC].contains(&span.base);
        self.spans.iter().filter(told).for_each(Span::reset);
    }

    /// `None` where no register answers.
    pub(crate) fn read(&self, address: u32) -> Option<u32> {
        match self.find(address) {
            Some((Access::Stored | Access::ReadOnly, word)) => Some(word.load(Ordering::Acquire)),
            Some((Access::Stub, _)) => Some(0),
            Some((Access::WriteOnly, _)) | None => self.answers(address).then_some(UNDEFINED),
        }
    }

    /// `None` where no register answers. An FPGA answers for a register that cannot be written too.
    pub(crate) fn write(&self, address: u32, value: u32) -> Option<()> {
        match self.find(address) {
            Some((Access::Stored | Access::WriteOnly | Access::Stub, word)) => {
                word.store(value, Ordering::Release);
                Some(())
            }
            Some((Access::ReadOnly, _)) | None => self.answers(address).then_some(()),
        }
    }

    /// What a register holds; 0 where there is none.
    pub(crate) fn get(&self, address: u32) -> u32 {
        self.find(address).map_or(0, |(_, word)| word.load(Ordering::Acquire))
    }

    /// The FPGA itself writes a register.
    pub(crate) fn set(&self, address: u32, value: u32) {
        if let Some((_, word)) = self.find(address) {
            word.store(value, Ordering::Release);
        }
    }

    /// Whether a register lies in this range, or an FPGA answers in it.
    pub(crate) fn occupies(&self, range: &Range<u32>) -> bool {
        range.clone().step_by(4).any(|address| self.find(address).is_some() || self.answers(address))
    }

    fn answers(&self, address: u32) -> bool {
        self.answering.iter().any(|block| block.contains(&address))
    }

    fn find(&self, address: u32) -> Option<(Access, &AtomicU32)> {
        self.spans.iter().find_map(|span| Some((span.access, span.word(address)?)))
    }

    fn add(&mut self, base: u32, words: u32, access: Access) {
        let span = Span { base, access, words: (0..words).map(|_| AtomicU32::new(0)).collect() };
        span.reset();
        self.spans.push(span);
    }

    /// Registers at these offsets from `base`.
    fn add_at(&mut self, base: u32, offsets: &[u32]) {
        offsets.iter().for_each(|offset| self.add(base + offset, 1, Access::Stored));
    }

    /// What the RTL has. Which of its registers change by themselves is left out, but for what a host waits for.
    fn add_fpga(&mut self, hsb_ip_version: u16) {
        self.answering = vec![0..0x400, VP_ADDRESS..VP_ADDRESS + regs::VP_COUNT * VP_STRIDE, 0x2000..0x3000];
        // A scratch register, the resets, GPIO.
        self.add(0x0, 11, Access::Stored);
        self.add(0x104, 7, Access::Stored);
        self.add(0x180, 4, Access::ReadOnly);
        self.add(0x200, 13, Access::Stored);
        self.add(0x280, 1, Access::ReadOnly);
        self.add(regs::SEQUENCER_RAM, 0x400, Access::Stored);
        for port in 0..regs::VP_COUNT {
            self.add_fpga_port(VP_ADDRESS + port * VP_STRIDE, hsb_ip_version);
        }
        self.add_at(HIF_COMMON, &[0x08, 0x0C, 0x18, 0x1C, 0x20, 0x24]);
        for plane in 0..PLANES {
            self.add(HIF_ADDRESS + plane * HIF_STRIDE + 4, 4, Access::Stored);
            self.answer(HIF_COMMON + plane * HIF_STRIDE, 0x400);
        }
        for sensor in 0..SENSORS {
            let base = SIF_ADDRESS + sensor * SIF_STRIDE;
            self.add(base + 4, 3, Access::Stored);
            self.answer(base, 0x100);
        }
        for channel in 0..CHANNELS {
            let base = regs::SIF_TX_THRESHOLD + channel * CHANNEL_STRIDE;
            self.add(base, 5, Access::Stored);
            self.answer(base, 0x100);
        }
        self.add(I2C, 0x20, Access::Stored);
        self.answer(I2C, 0x100);
    }

    fn add_fpga_port(&mut self, base: u32, hsb_ip_version: u16) {
        self.add(base, 7, Access::Stored);
        if has_old_layout(hsb_ip_version) {
            self.add(regs::OldVp::BufferMask.at(base), 1, Access::Stored);
        }
        self.add(regs::Vp::HostMacLow.at(base), 4, Access::Stored);
        self.add(regs::Vp::Vlan.at(base), 1, Access::Stored);
        self.add(regs::Vp::Psn.at(base), 1, Access::ReadOnly);
    }

    fn answer(&mut self, base: u32, bytes: u32) {
        self.answering.push(base..base + bytes);
    }

    /// What the emulator has, and the threshold of the SENDs, which it lacks and playback writes.
    fn add_lenient(&mut self) {
        self.add(regs::RESET, 2, Access::WriteOnly);
        self.add(0x104, 1, Access::Stored);
        self.add(0x10C, 4, Access::Stored);
        self.add_at(0x180, &[0, 8, 12]);
        self.add(0x200, 11, Access::Stored);
        self.add(0x22C, 1, Access::WriteOnly);
        self.add(0x280, 1, Access::ReadOnly);
        self.add(regs::SEQUENCER_RAM, 0x400, Access::Stored);
        self.add(VP_ADDRESS, 12, Access::Stored);
        self.add(HIF_ADDRESS, 4, Access::Stored);
        self.add(SIF_ADDRESS + 4, 3, Access::Stored);
        self.add(regs::SIF_TX_THRESHOLD, 5, Access::Stored);
        self.add(I2C, 0x20, Access::Stored);
        self.add(STUB, 5, Access::Stub);
    }
}

fn reset_value(address: u32) -> u32 {
    let in_plane = |address: u32| address & !HIF_STRIDE;
    match address {
        regs::PTP_STATUS => regs::PTP_SYNCHRONIZED,
        0x0200_0008 => 0x1000,
        0x0200_0020 => 8192,
        0x0200_0024 => 4791,
        _ if in_plane(address) == regs::Hif::PacketSize.at(HIF_ADDRESS) => 0x5CE,
        _ if in_plane(address) == regs::Hif::UdpPort.at(HIF_ADDRESS) => 12288,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fpga() -> Blocks {
        Blocks::new(Personality::Fpga, 0x2606)
    }

    fn lenient() -> Blocks {
        Blocks::new(Personality::Lenient, 0x2602)
    }

    #[test]
    fn both_have_what_a_host_writes_when_it_starts() {
        for blocks in [fpga(), lenient()] {
            let starting = regs::PTP_START.into_iter().chain(regs::EVENTS_OFF);
            for (address, value) in starting.chain([
                (regs::EVENT_UDP_PORT, 1),
                (regs::EVENT_SOURCE_UDP_PORT, 2),
                (regs::NULL_SEQUENCE, 3),
                (0x2FFC, 4),
                (regs::PERIPHERAL_RESET, 0),
                (regs::SIF_TX_THRESHOLD, 5),
                (0x0100_000C, 0),
                (0x102C, 4791),
                (0x0200_0304, 11),
                (0x0200_0308, 12288),
                (0x0200_030C, 1),
            ]) {
                assert_eq!(blocks.write(address, value), Some(()), "{address:#x}");
                assert_eq!(blocks.get(address), value, "{address:#x}");
            }
        }
    }

    #[test]
    fn an_fpga_answers_for_whole_blocks() {
        let blocks = fpga();
        let holes = [0x2C, 0x7C, 0x100, 0x1FC, 0x101C, 0x1030, 0x1038, 0x17F8, 0x0200_0300, 0x0100_0000];
        for hole in holes.into_iter().chain([0x0200_0000, 0x0201_0314, 0x0120_0014, 0x0300_02FC]) {
            assert_eq!((blocks.read(hole), blocks.write(hole, 1)), (Some(UNDEFINED), Some(())), "{hole:#x}");
            assert_eq!(blocks.read(hole), Some(UNDEFINED), "{hole:#x}");
        }
        for nothing in [0x400, 0xFFC, 0x1800, 0x3000, 0x0104_0000, 0x0202_0300, 0xDEAD_0000, 0xFFFF_FFFC] {
            assert_eq!((blocks.read(nothing), blocks.write(nothing, 1)), (None, None), "{nothing:#x}");
        }
        for read_only in [regs::VERSION, regs::FPGA_CRC, regs::PTP_STATUS, 0x103C] {
            let before = blocks.read(read_only);
            assert!(before.is_some() && blocks.write(read_only, 77).is_some());
            assert_eq!(blocks.read(read_only), before, "{read_only:#x}");
        }
        assert_eq!(blocks.read(regs::PTP_STATUS), Some(0xF));
    }

    #[test]
    fn the_emulator_answers_for_registers_alone() {
        let blocks = lenient();
        let nothing =
            [0x0, 0xC, 0x108, 0x11C, 0x184, 0x230, 0xFFC, 0x1030, 0x1034, 0x103C, 0x1040, 0x0200_0008];
        for address in nothing.into_iter().chain([0x0200_0310, 0x6FFF_FFFC, 0x7000_0014, 0x1800]) {
            assert_eq!((blocks.read(address), blocks.write(address, 1)), (None, None), "{address:#x}");
        }
        for write_only in [0x4, 0x8, 0x22C] {
            assert_eq!((blocks.write(write_only, 1), blocks.read(write_only)), (Some(()), None));
        }
        for read_only in [0x80, 0x84, 0x280] {
            assert!(blocks.read(read_only).is_some() && blocks.write(read_only, 1).is_none());
        }
        assert_eq!((blocks.read(0x80), blocks.read(0x84)), (Some(0x2602), Some(0x5AA5)));
        for stub in (0x7000_0000..0x7000_0014).step_by(4) {
            assert_eq!((blocks.write(stub, 9), blocks.read(stub)), (Some(()), Some(0)));
        }
        assert_eq!(
            (blocks.write(0x101C, 9), blocks.read(0x101C)),
            (Some(()), Some(9)),
            "storage, whatever it was"
        );
        assert_eq!((blocks.write(0x188, 9), blocks.read(0x188)), (Some(()), Some(9)));
    }

    #[test]
    fn old_versions_have_the_mask_of_pages() {
        let old = Blocks::new(Personality::Fpga, 0x2510);
        assert_eq!(
            (old.write(0x101C, 7), old.read(0x101C), old.read(0x80)),
            (Some(()), Some(7), Some(0x2510))
        );
    }

    #[test]
    fn a_reset_leaves_what_was_there_at_first() {
        let blocks = fpga();
        let registers =
            [0x0200_0304, 0x0200_0308, 0x0201_0304, 0x1000, 0x17DC, 0x0200_0024, 0x0200_0020, 0x0];
        let before = registers.map(|address| blocks.read(address));
        assert_eq!(&before[..3], [Some(0x5CE), Some(12288), Some(0x5CE)]);
        assert!(registers.iter().all(|&address| blocks.write(address, 0x1234).is_some()));
        assert_eq!(blocks.read(0x1000), Some(0x1234));
        blocks.reset();
        assert_eq!(registers.map(|address| blocks.read(address)), before);
        assert_eq!(blocks.read(regs::VERSION), Some(0x2606));
    }
}
