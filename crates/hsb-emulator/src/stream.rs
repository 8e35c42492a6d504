//! Frames into packets: which page they go to, and what each packet carries.
//!
//! Each packet is a WRITE of its own with its own address. The last one of a frame has the immediate: a packet of
//! metadata, or the last of the data where there is none, or both in one where the emulator finds room.

use roce_core::{FrameMetadata, ImmediateLayout, METADATA_LEN, Psn, Qpn, Rkey};
use std::net::Ipv4Addr;

use crate::clock::Timestamp;
use crate::personality::Personality;

/// Bytes of a block of metadata, and the unit of packets.
#[allow(clippy::cast_possible_truncation)] // 128
const UNIT: u32 = METADATA_LEN as u32;
/// Bits of an address that the FPGA counts: pages lie in one window of so many bits.
const WINDOW: u64 = (1 << 33) - 1;
/// Pages are numbered with 12 bits.
const PAGE_MASK: u32 = 0xFFF;
/// Around the payload of the emulator's packets, as it reckons: immediate and pad of a packet with metadata.
const IMMEDIATE: u32 = 4;

/// Where frames go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) qpn: Qpn,
    pub(crate) rkey: Rkey,
    pub(crate) pages: Pages,
    /// Bytes of a frame; 0 where the host has not written it.
    pub(crate) frame_size: u32,
    /// Payload of a packet in bytes, a multiple of 128; 0 where only the link limits it.
    pub(crate) packet: u32,
    /// Metadata follow each frame.
    pub(crate) metadata: bool,
    /// Unspecified where the host has not written it.
    pub(crate) ip: Ipv4Addr,
    /// Frames may leave.
    pub(crate) streams: bool,
    /// How often the ring's registers have been written.
    pub(crate) configured: u32,
}

/// The host's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// One page behind the other, in bytes.
    Strided { base: u64, stride: u64, first: u32, last: u32 },
    /// An address for each of four pages in bytes, and a bit for each that is used.
    Listed { addresses: [u64; 4], used: u32 },
}

impl Pages {
    fn after(&self, page: u32) -> u32 {
        match *self {
            Self::Strided { first, last, .. } if page == last => first,
            Self::Strided { .. } => (page + 1) & PAGE_MASK,
            Self::Listed { used, .. } => {
                let next = |step| (page + step) % 4;
                (1..=4).map(next).find(|&page| used >> page & 1 != 0).unwrap_or(0)
            }
        }
    }

    /// How long a frame may be before it runs into the next page.
    pub(crate) fn room(&self) -> u64 {
        match *self {
            Self::Strided { stride: 0, .. } | Self::Listed { .. } => u64::MAX,
            Self::Strided { stride, .. } => stride,
        }
    }

    /// The address of a byte of a page.
    fn address(&self, page: u32, offset: u64, personality: Personality) -> u64 {
        match *self {
            Self::Strided { base, stride, .. } => {
                let address = base.wrapping_add(u64::from(page).wrapping_mul(stride)).wrapping_add(offset);
                match personality {
                    Personality::Fpga => base & !WINDOW | address & WINDOW,
                    Personality::Lenient => address,
                }
            }
            Self::Listed { addresses, .. } => addresses[page as usize % 4].wrapping_add(offset),
        }
    }
}

/// What a virtual port remembers from frame to frame. It outlives a configuration; a reset of the device ends it.
#[derive(Debug)]
pub(crate) struct Stream {
    personality: Personality,
    immediate: ImmediateLayout,
    page: u32,
    /// The configuration that `page` belongs to.
    configured: u32,
    psn: Psn,
    frame_number: u16,
}

impl Stream {
    pub(crate) fn new(personality: Personality, immediate: ImmediateLayout) -> Self {
        Self { personality, immediate, page: 0, configured: 0, psn: Psn::default(), frame_number: 0 }
    }

    /// The PSN of the next packet.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// The next frame of `len` bytes, at least one, in packets of at most `limit` bytes.
    pub(crate) fn next_frame(&mut self, target: &Target, len: u32, limit: u32) -> Frame {
        if self.personality == Personality::Lenient {
            if self.configured != target.configured {
                (self.page, self.configured) = (0, target.configured);
            }
            self.page = target.pages.after(self.page);
        }
        let packet = match target.packet {
            0 => limit,
            packet => packet.min(limit),
        };
        Frame {
            personality: self.personality,
            immediate: self.immediate,
            pages: target.pages,
            page: self.page,
            first_psn: self.psn,
            len,
            frame_size: if target.frame_size == 0 { len } else { target.frame_size },
            packet,
            metadata: Metadata::of(target.metadata, self.personality, len, packet),
            frame_number: self.frame_number,
        }
    }

    /// The frame is over, and so many of its packets have left.
    pub(crate) fn end_frame(&mut self, frame: &Frame, packets: u32) {
        self.psn = self.psn.add(packets);
        self.frame_number = self.frame_number.wrapping_add(1);
        if self.personality == Personality::Fpga {
            self.page = frame.pages.after(self.page);
        }
    }
}

/// Where a frame's metadata go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metadata {
    Off,
    /// In a packet of their own.
    Separate,
    /// Behind the last data, in the same packet.
    Merged,
}

impl Metadata {
    fn of(wanted: bool, personality: Personality, len: u32, packet: u32) -> Self {
        if !wanted {
            return Self::Off;
        }
        let last = len - (len.div_ceil(packet) - 1) * packet;
        let taken = last.next_multiple_of(UNIT) + UNIT + IMMEDIATE;
        let room = packet.checked_sub(taken).is_some_and(|room| room >= UNIT);
        if personality == Personality::Lenient && room { Self::Merged } else { Self::Separate }
    }
}

/// A frame on its way. Its bytes are prepared as the data, zeros to a multiple of 128, and the metadata.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    personality: Personality,
    immediate: ImmediateLayout,
    pages: Pages,
    page: u32,
    first_psn: Psn,
    /// Bytes of data.
    len: u32,
    /// Bytes that there should be.
    frame_size: u32,
    packet: u32,
    metadata: Metadata,
    frame_number: u16,
}

/// One packet of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FramePacket {
    /// Of its payload in the prepared bytes.
    pub(crate) offset: u32,
    /// Bytes of its payload.
    pub(crate) len: u32,
    /// Where the peer is to write it.
    pub(crate) addr: u64,
    pub(crate) imm: Option<u32>,
}

impl Frame {
    /// The block of metadata; `None` where none is sent.
    pub(crate) fn metadata(&self, first_data: Timestamp, created: Timestamp) -> Option<[u8; METADATA_LEN]> {
        if self.metadata == Metadata::Off {
            return None;
        }
        let early = self.personality == Personality::Fpga && self.len < self.frame_size;
        let block = FrameMetadata {
            flags: if early { FrameMetadata::ENDED_EARLY } else { 0 },
            psn: self.counted(self.last_psn()),
            crc: 0,
            first_data: first_data.frame_time(),
            bytes_written: self.len.into(),
            frame_number: self.frame_number,
            created: created.frame_time(),
        };
        Some(block.encode())
    }

    /// Its packets, in order.
    pub(crate) fn packets(self) -> impl Iterator<Item = FramePacket> {
        (0..self.count()).map(move |index| self.packet(index))
    }

    fn data_packets(&self) -> u32 {
        self.len.div_ceil(self.packet)
    }

    fn count(&self) -> u32 {
        self.data_packets() + u32::from(self.metadata == Metadata::Separate)
    }

    fn last_psn(&self) -> Psn {
        self.first_psn.add(self.count() - 1)
    }

    /// The emulator counts to 20 bits.
    fn counted(&self, psn: Psn) -> Psn {
        match self.personality {
            Personality::Fpga => psn,
            Personality::Lenient => Psn::new(psn.get() & 0xF_FFFF),
        }
    }

    fn packet(&self, index: u32) -> FramePacket {
        let behind = self.len.next_multiple_of(UNIT);
        let (offset, len, at) = if index == self.data_packets() {
            (behind, UNIT, FrameMetadata::offset(self.frame_size))
        } else {
            let offset = index * self.packet;
            let end = match self.metadata {
                Metadata::Merged if index + 1 == self.data_packets() => behind + UNIT,
                _ => self.len.min(offset + self.packet),
            };
            (offset, end - offset, offset.into())
        };
        let is_last = index + 1 == self.count();
        FramePacket {
            offset,
            len,
            addr: self.pages.address(self.page, at, self.personality),
            imm: is_last.then(|| self.immediate.encode(self.page, self.counted(self.last_psn()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDED: Pages = Pages::Strided { base: 0, stride: 0x1080, first: 0, last: 3 };

    fn target(pages: Pages) -> Target {
        Target {
            qpn: Qpn::from_low_bits(0x123),
            rkey: Rkey::new(0xCAFE_BABE),
            pages,
            frame_size: 4096,
            packet: 1408,
            metadata: true,
            ip: Ipv4Addr::LOCALHOST,
            streams: true,
            configured: 1,
        }
    }

    fn fpga() -> Stream {
        Stream::new(Personality::Fpga, ImmediateLayout::Hsb)
    }

    fn lenient() -> Stream {
        Stream::new(Personality::Lenient, ImmediateLayout::Hsb)
    }

    /// Sends a frame: its packets as length, address and immediate.
    fn send(stream: &mut Stream, target: &Target, len: u32) -> Vec<(u32, u64, Option<u32>)> {
        let frame = stream.next_frame(target, len, 4096);
        let packets: Vec<FramePacket> = frame.packets().collect();
        let offsets: Vec<u32> = packets.iter().map(|packet| packet.offset).collect();
        assert!(offsets.is_sorted() && offsets[0] == 0 && offsets.iter().all(|offset| offset % 128 == 0));
        stream.end_frame(&frame, u32::try_from(packets.len()).expect("few"));
        packets.iter().map(|packet| (packet.len, packet.addr, packet.imm)).collect()
    }

    fn pages(stream: &mut Stream, target: &Target, frames: u32) -> Vec<u32> {
        let mut page =
            |_| send(stream, target, 64).last().and_then(|packet| packet.2).expect("an immediate") & 0xFFF;
        (0..frames).map(&mut page).collect()
    }

    #[test]
    fn a_frame_of_three_packets_and_its_metadata() {
        let expected = |page: u64| {
            let base = page * 0x1080;
            let imm = u32::try_from(3 << 12 | page).expect("small");
            vec![
                (1408, base, None),
                (1408, base + 0x580, None),
                (1280, base + 0xB00, None),
                (128, base + 0x1000, Some(imm)),
            ]
        };
        assert_eq!(send(&mut fpga(), &target(STRIDED), 4096), expected(0));
        assert_eq!(send(&mut lenient(), &target(STRIDED), 4096), expected(1));
    }

    #[test]
    fn without_metadata_the_last_data_has_the_immediate() {
        let target = Target { metadata: false, ..target(STRIDED) };
        for (mut stream, page) in [(fpga(), 0), (lenient(), 1)] {
            let packets = send(&mut stream, &target, 1409);
            let base = u64::from(page) * 0x1080;
            assert_eq!(packets, [(1408, base, None), (1, base + 0x580, Some(1 << 12 | page))]);
            assert_eq!(stream.psn(), Psn::new(2));
        }
    }

    #[test]
    fn the_emulator_merges_metadata_where_they_fit() {
        let of_size = |frame_size| Target { frame_size, ..target(STRIDED) };
        assert_eq!(send(&mut lenient(), &of_size(30), 30), [(256, 0x1080, Some(1))]);
        assert_eq!(send(&mut lenient(), &of_size(100), 100), [(256, 0x1080, Some(1))]);
        for len in [1100, 1281] {
            let behind = 0x1080 + u64::from(len).next_multiple_of(128);
            let separate = [(len, 0x1080, None), (128, behind, Some(1 << 12 | 1))];
            assert_eq!(send(&mut lenient(), &of_size(len), len), separate);
        }
        let two = [(1408, 0x1080, None), (128 + 128, 0x1080 + 1408, Some(1 << 12 | 1))];
        assert_eq!(send(&mut lenient(), &of_size(1500), 1500), two);
        assert_eq!(send(&mut fpga(), &of_size(30), 30), [(30, 0, None), (128, 128, Some(1 << 12))]);
    }

    #[test]
    fn metadata_tell_of_their_own_packet() {
        let time = |seconds| Timestamp { seconds, nanoseconds: 7 };
        let mut stream = fpga();
        send(&mut stream, &target(STRIDED), 4096);
        let frame = stream.next_frame(&target(STRIDED), 4000, 4096);
        let block = frame.metadata(time(1), time(2)).expect("wanted");
        let metadata = FrameMetadata::decode(&block).expect("whole");
        let expected = FrameMetadata {
            flags: FrameMetadata::ENDED_EARLY,
            psn: Psn::new(7),
            crc: 0,
            first_data: time(1).frame_time(),
            bytes_written: 4000,
            frame_number: 1,
            created: time(2).frame_time(),
        };
        assert_eq!(metadata, expected);
        let last = frame.packets().last().expect("packets");
        assert_eq!(
            (last.addr, last.imm),
            (0x1080 + 4096, Some(7 << 12 | 1)),
            "behind the size that was to be"
        );
        let whole = lenient().next_frame(&target(STRIDED), 4000, 4096).metadata(time(1), time(2));
        assert!(!FrameMetadata::decode(&whole.expect("wanted")).expect("whole").ended_early());
        let off = Target { metadata: false, ..target(STRIDED) };
        assert_eq!(fpga().next_frame(&off, 64, 4096).metadata(time(1), time(2)), None);
    }

    #[test]
    fn an_fpga_goes_on_where_it_was() {
        let mut stream = fpga();
        let four = target(STRIDED);
        assert_eq!(pages(&mut stream, &four, 6), [0, 1, 2, 3, 0, 1]);
        let again = Target { configured: 2, ..four };
        assert_eq!(pages(&mut stream, &again, 1), [2]);
        let two = Target { pages: Pages::Strided { base: 0, stride: 0x1080, first: 0, last: 1 }, ..again };
        assert_eq!(
            pages(&mut stream, &two, 4),
            [3, 4, 5, 6],
            "beyond the last page it only comes round at 4095"
        );
        assert_eq!(pages(&mut stream, &two, 4089)[4086..], [4093, 4094, 4095]);
        assert_eq!(pages(&mut stream, &two, 3), [0, 1, 0]);
        let first = Target { pages: Pages::Strided { base: 0, stride: 0x1080, first: 2, last: 3 }, ..four };
        assert_eq!(pages(&mut fpga(), &first, 6), [0, 1, 2, 3, 2, 3]);
    }

    #[test]
    fn the_emulator_begins_anew_on_page_1() {
        let mut stream = lenient();
        let four = target(STRIDED);
        assert_eq!(pages(&mut stream, &four, 6), [1, 2, 3, 0, 1, 2]);
        let again = Target { configured: 2, ..four };
        assert_eq!(pages(&mut stream, &again, 2), [1, 2]);
        let one = Target { pages: Pages::Strided { base: 0, stride: 0, first: 0, last: 0 }, ..four };
        assert_eq!(pages(&mut stream, &one, 3), [0, 0, 0]);
    }

    #[test]
    fn addresses_stay_in_their_window() {
        let base = (5 << 33) - 0x80;
        let ring =
            Target { pages: Pages::Strided { base, stride: 0x80, first: 0, last: 3 }, ..target(STRIDED) };
        let at = |stream: &mut Stream| send(stream, &Target { metadata: false, ..ring }, 64)[0].1;
        let mut stream = fpga();
        assert_eq!([at(&mut stream), at(&mut stream)], [base, 4 << 33]);
        assert_eq!(at(&mut lenient()), 5 << 33);
    }

    #[test]
    fn old_versions_list_their_pages() {
        let listed = Pages::Listed { addresses: [0x1000, 0x9000, 0x5000, 0], used: 0b111 };
        let target = Target { metadata: false, packet: 0, ..target(listed) };
        let mut stream = Stream::new(Personality::Fpga, ImmediateLayout::Hsb2510);
        let sent: Vec<_> = (0..4).map(|_| send(&mut stream, &target, 64)[0]).collect();
        let expected = [(0x1000, 0), (0x9000, 0x101), (0x5000, 0x202), (0x1000, 0x300)];
        assert_eq!(sent, expected.map(|(addr, imm)| (64, addr, Some(imm))));
    }

    #[test]
    fn psns_wrap_where_their_field_does() {
        let target = Target { metadata: false, ..target(STRIDED) };
        for (mut stream, imm) in [(fpga(), 0xFF_FFFF_u32 << 12), (lenient(), 0xF_FFFF << 12 | 1)] {
            stream.psn = Psn::new(0xFF_FFFF);
            assert_eq!(send(&mut stream, &target, 64)[0].2, Some(imm));
            assert_eq!(stream.psn(), Psn::new(0));
        }
        let mut old = Stream::new(Personality::Fpga, ImmediateLayout::Hsb2510);
        old.psn = Psn::new(0x12_3456);
        assert_eq!(send(&mut old, &target, 64)[0].2, Some(0x1234_5600));
    }

    #[test]
    fn the_links_limit_is_a_packets() {
        let target = Target { packet: 1408, metadata: false, ..target(STRIDED) };
        let frame = fpga().next_frame(&target, 2100, 1024);
        assert_eq!(frame.packets().map(|packet| packet.len).collect::<Vec<_>>(), [1024, 1024, 52]);
    }
}
