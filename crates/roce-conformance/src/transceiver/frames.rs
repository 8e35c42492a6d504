//! Frames as an FPGA sends them: many WRITEs into one page, the last with the immediate.

use roce_core::{FrameMetadata, ImmediateLayout, METADATA_LEN, Mtu, Psn, RegionId, Sge};
use roce_ring::SlotBytes;
use roce_transport::{ConfigBuilder, ImmediateFormat, Mode, Unified, frame_metadata};

use super::{Station, peer_of};
use crate::links::{Links, Side};
use crate::memory::content;
use crate::queue_pair::{End, QpOf, queue_pair};
use crate::wait::{wait_for, wait_until};

const PAGES: u32 = 8;
const PAYLOAD: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Shape {
    frame_size: u32,
    metadata: bool,
    layout: ImmediateLayout,
}

impl Shape {
    fn page_size(self) -> u32 {
        self.frame_size.next_multiple_of(128) + 128
    }

    fn config(self, config: ConfigBuilder) -> ConfigBuilder {
        let format = match self.layout {
            ImmediateLayout::Slot => ImmediateFormat::Slot,
            ImmediateLayout::Hsb => ImmediateFormat::Hsb,
            ImmediateLayout::Hsb2510 => ImmediateFormat::Hsb2510,
        };
        let config = config.num_pages(PAGES).page_size(self.page_size()).frame_size(self.frame_size);
        config.mtu(Mtu::B256).immediate(format).metadata(self.metadata)
    }

    /// The bytes of a frame's page, and where each packet of it ends.
    fn frame(self, number: u16, last: Psn) -> (Vec<u8>, Vec<usize>) {
        let len = self.frame_size as usize;
        let mut bytes = content(number.into(), len);
        let mut ends: Vec<usize> = (PAYLOAD..len).step_by(PAYLOAD).chain([len]).collect();
        if self.metadata {
            let metadata = FrameMetadata {
                psn: last,
                bytes_written: self.frame_size.into(),
                frame_number: number,
                ..FrameMetadata::default()
            };
            bytes.resize(len.next_multiple_of(METADATA_LEN), 0);
            bytes.extend(metadata.encode());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn packets(self) -> u32 {
        self.frame_size.div_ceil(256) + u32::from(self.metadata)
    }

    /// Whether a slot holds that frame, and its metadata.
    fn assert_holds(self, slot: SlotBytes<'_>, number: u16, station: &Station) {
        let mut bytes = vec![0; self.frame_size as usize];
        slot.copy_to(0, &mut bytes);
        assert!(bytes == content(number.into(), bytes.len()), "{self:?}: frame {number} is not whole");
        if self.metadata {
            let metadata = frame_metadata(slot, station.config().geometry()).expect("room for it");
            assert_eq!((metadata.frame_number, metadata.bytes_written), (number, self.frame_size.into()));
        }
    }
}

/// A queue pair that plays the FPGA.
struct Fpga<L: Links> {
    end: End<QpOf<L>>,
    shape: Shape,
    psn: Psn,
    frames: u16,
}

impl<L: Links> Fpga<L> {
    fn next_frame(&mut self) {
        let page = u32::from(self.frames) % PAGES;
        let (bytes, ends) = self.shape.frame(self.frames, self.psn.add(self.shape.packets() - 1));
        self.end.tx.set(0, &bytes);
        let mut start = 0;
        for (at, &end) in ends.iter().enumerate() {
            if at + 1 == ends.len() && self.shape.metadata {
                start = end - METADATA_LEN;
            }
            let imm = (at + 1 == ends.len()).then(|| self.shape.layout.encode(page, self.psn));
            let len = u32::try_from(end - start).expect("a packet");
            let sge = Sge { region: RegionId::Tx, offset: start as u64, len };
            let verb = self.end.write(u64::from(page * self.shape.page_size()) + start as u64, imm);
            self.end.stage(sge, verb);
            self.psn = self.psn.next();
            start = end;
        }
        self.end.flush();
        self.frames += 1;
    }
}

fn connected<L: Links>(links: &L, shape: Shape, mode: Mode) -> (Fpga<L>, Station) {
    let mut host = Station::set_up(shape.config(links.config(Side::B)).mode(mode));
    let fpga = queue_pair(&links.device(Side::A), Some(Mtu::B256));
    host.connect(&fpga.endpoint()).unwrap_or_else(|e| panic!("connect: {e}"));
    let end = fpga.connect(&peer_of(host.endpoint().expect("set up")));
    host.run();
    (Fpga { end, shape, psn: Psn::default(), frames: 0 }, host)
}

fn assert_nothing_is_missing(host: &Station, received: u64) {
    let stats = host.stats();
    let bad = (stats.lost, stats.lost_packets, stats.torn, stats.stale_metadata, stats.dropped);
    assert_eq!((stats.received, bad), (received, (0, 0, 0, 0, 0)));
}

pub(crate) fn frames_of_many_writes<L: Links>(links: &L) {
    const FRAMES: u16 = 20;
    for layout in [ImmediateLayout::Slot, ImmediateLayout::Hsb, ImmediateLayout::Hsb2510] {
        for (frame_size, metadata) in [(200, false), (200, true), (700, false), (700, true), (9984, true)] {
            let shape = Shape { frame_size, metadata, layout };
            let (mut fpga, host) = connected(links, shape, Mode::Unified);
            let mut unified: Unified = host.take_unified().expect("connected");
            for number in 0..FRAMES {
                fpga.next_frame();
                let slot = wait_for("a frame", || unified.rx_poll().expect("open"));
                assert_eq!(slot, u32::from(number) % PAGES);
                shape.assert_holds(unified.rx_slot(slot), number, &host);
            }
            assert_nothing_is_missing(&host, FRAMES.into());
        }
    }
}

pub(crate) fn frames_of_many_writes_in_every_mode<L: Links>(links: &L) {
    const FRAMES: u16 = 100;
    let shape = Shape { frame_size: 700, metadata: true, layout: ImmediateLayout::Hsb };
    for mode in [Mode::RxOnly, Mode::Threads] {
        let (mut fpga, host) = connected(links, shape, mode);
        let ends = host.take_ends().expect("set up");
        for number in 0..FRAMES {
            fpga.next_frame();
            let frame = wait_for("a frame", || ends.rx.peek(u32::from(number) % PAGES));
            shape.assert_holds(frame.bytes(), number, &host);
            frame.release().expect("not overwritten");
        }
        assert_nothing_is_missing(&host, FRAMES.into());
        host.close_well();
    }
    // What is sent back comes as SENDs of a frame's length, for which the FPGA has receives.
    let (mut fpga, host) = connected(links, shape, Mode::Forward);
    for number in 0..u64::from(FRAMES) {
        let slot = number % 8;
        fpga.end.post(0, slot * 1024, 1024);
        fpga.next_frame();
        let echo = wait_for("an echo", || fpga.end.poll());
        assert_eq!(echo.result.map(|received| received.len), Ok(700));
        let at = usize::try_from(slot).expect("small") * 1024;
        assert!(fpga.end.rx.get(at, 700) == content(number, 700), "frame {number} came back changed");
    }
    wait_until("the last one counted", || host.stats().sent == FRAMES.into());
    assert_nothing_is_missing(&host, FRAMES.into());
    host.close_well();
}
