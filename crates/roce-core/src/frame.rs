//! Frames as an FPGA writes them: the immediate that names the page, and the metadata behind the data.
//!
//! A frame lands in one page of the host's ring, in as many packets as it takes, each a WRITE of its own. The last
//! packet carries an immediate. Where the FPGA is told to, that last packet is a block of metadata, at the first
//! multiple of 128 bytes behind the frame.

use std::time::Duration;

use crate::Psn;

/// Bytes of a block of metadata, and the unit of pages and packets.
pub const METADATA_LEN: usize = 128;

/// A block of metadata that is cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are no metadata of a frame, which has {METADATA_LEN}; is the page large enough for it?")]
pub struct ShortMetadata {
    /// Bytes that there are.
    pub len: usize,
}

/// What an FPGA tells of a frame, in the 128 bytes behind its data. All numbers are big-endian on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameMetadata {
    /// [`ENDED_EARLY`](Self::ENDED_EARLY), [`WINDOW_END_ONLY`](Self::WINDOW_END_ONLY); other bits are reserved.
    pub flags: u32,
    /// Of the packet that carried this block, which is the one with the immediate.
    pub psn: Psn,
    /// Checksum of the frame's data; 0 from FPGAs in software.
    pub crc: u32,
    /// When the first data came, since the epoch of the FPGA's clock.
    pub first_data: FrameTime,
    /// Bytes of the frame's data.
    pub bytes_written: u64,
    /// Counts frames since the FPGA was reset, and wraps.
    pub frame_number: u16,
    /// When this block was made, since the epoch of the FPGA's clock.
    pub created: FrameTime,
}

/// A time of the FPGA's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FrameTime {
    /// Whole seconds.
    pub seconds: u64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl FrameTime {
    /// The time since the clock's epoch. Nanoseconds of a second and more carry over; the sum stops at the longest
    /// duration there is.
    pub const fn since_epoch(self) -> Duration {
        Duration::from_secs(self.seconds).saturating_add(Duration::from_nanos(self.nanoseconds as u64))
    }
}

/// Where the fields lie.
mod at {
    pub(super) const FLAGS: usize = 0;
    pub(super) const PSN: usize = 4;
    pub(super) const CRC: usize = 8;
    pub(super) const FIRST_DATA: usize = 12;
    pub(super) const BYTES_WRITTEN: usize = 24;
    pub(super) const FRAME_NUMBER: usize = 34;
    pub(super) const CREATED: usize = 36;
}

impl FrameMetadata {
    /// For [`flags`](Self::flags): the frame ended before the length that the FPGA was told.
    pub const ENDED_EARLY: u32 = 1;
    /// For [`flags`](Self::flags): the frame ended by its bytes per window alone.
    pub const WINDOW_END_ONLY: u32 = 2;

    /// Whether the frame is shorter than it should be.
    pub const fn ended_early(&self) -> bool {
        self.flags & Self::ENDED_EARLY != 0
    }

    /// Its bytes; what is reserved is 0.
    pub fn encode(&self) -> [u8; METADATA_LEN] {
        let mut block = [0; METADATA_LEN];
        put(&mut block, at::FLAGS, self.flags.to_be_bytes());
        put(&mut block, at::PSN, self.psn.get().to_be_bytes());
        put(&mut block, at::CRC, self.crc.to_be_bytes());
        put_time(&mut block, at::FIRST_DATA, self.first_data);
        put(&mut block, at::BYTES_WRITTEN, self.bytes_written.to_be_bytes());
        put(&mut block, at::FRAME_NUMBER, self.frame_number.to_be_bytes());
        put_time(&mut block, at::CREATED, self.created);
        block
    }

    /// Reads the block at the start of `bytes`. Reserved bytes may be anything, and so may what follows.
    pub fn decode(bytes: &[u8]) -> Result<Self, ShortMetadata> {
        let block = bytes.first_chunk::<METADATA_LEN>().ok_or(ShortMetadata { len: bytes.len() })?;
        Ok(Self {
            flags: u32::from_be_bytes(field(block, at::FLAGS)),
            psn: Psn::new(u32::from_be_bytes(field(block, at::PSN))),
            crc: u32::from_be_bytes(field(block, at::CRC)),
            first_data: time(block, at::FIRST_DATA),
            bytes_written: u64::from_be_bytes(field(block, at::BYTES_WRITTEN)),
            frame_number: u16::from_be_bytes(field(block, at::FRAME_NUMBER)),
            created: time(block, at::CREATED),
        })
    }

    /// Where the block lies from the start of its page, in bytes, for frames of `frame_size` bytes.
    pub const fn offset(frame_size: u32) -> u64 {
        (frame_size as u64).next_multiple_of(METADATA_LEN as u64)
    }
}

fn put<const N: usize>(block: &mut [u8; METADATA_LEN], offset: usize, value: [u8; N]) {
    block[offset..offset + N].copy_from_slice(&value);
}

fn put_time(block: &mut [u8; METADATA_LEN], offset: usize, time: FrameTime) {
    put(block, offset, time.seconds.to_be_bytes());
    put(block, offset + 8, time.nanoseconds.to_be_bytes());
}

fn field<const N: usize>(block: &[u8; METADATA_LEN], offset: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&block[offset..offset + N]);
    value
}

fn time(block: &[u8; METADATA_LEN], offset: usize) -> FrameTime {
    FrameTime {
        seconds: u64::from_be_bytes(field(block, offset)),
        nanoseconds: u32::from_be_bytes(field(block, offset + 8)),
    }
}

/// What the 32 bits of a frame's immediate are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImmediateLayout {
    /// All of it is the page: software peers.
    Slot,
    /// The low 20 bits of the packet's PSN above 12 bits of page: HSB IP 0x2603 and later.
    Hsb,
    /// The packet's PSN above 8 bits of page: HSB IP before 0x2603.
    Hsb2510,
}

impl ImmediateLayout {
    /// How an FPGA with that version of the HSB IP writes it.
    pub const fn of_version(hsb_ip_version: u32) -> Self {
        if hsb_ip_version < 0x2603 { Self::Hsb2510 } else { Self::Hsb }
    }

    /// Bits of the page.
    pub const fn page_bits(self) -> u32 {
        match self {
            Self::Slot => 32,
            Self::Hsb => 12,
            Self::Hsb2510 => 8,
        }
    }

    /// How many pages it can tell apart.
    pub const fn pages(self) -> u64 {
        1 << self.page_bits()
    }

    /// The immediate of a packet; bits of page and PSN that have no room are left out.
    pub const fn encode(self, page: u32, psn: Psn) -> u32 {
        match self {
            Self::Slot => page,
            Self::Hsb | Self::Hsb2510 => psn.get() << self.page_bits() | self.page(page),
        }
    }

    /// The page that an immediate names.
    pub const fn page(self, imm: u32) -> u32 {
        match self {
            Self::Slot => imm,
            Self::Hsb | Self::Hsb2510 => imm & ((1 << self.page_bits()) - 1),
        }
    }

    /// The low bits of the PSN of the packet that carried it; `None` where it carries none.
    pub const fn psn(self, imm: u32) -> Option<u32> {
        match self {
            Self::Slot => None,
            Self::Hsb | Self::Hsb2510 => Some(imm >> self.page_bits()),
        }
    }

    /// Whether a packet with this immediate may have that PSN, as far as the immediate tells.
    pub const fn agrees(self, imm: u32, psn: Psn) -> bool {
        match self {
            Self::Slot => true,
            Self::Hsb | Self::Hsb2510 => self.encode(imm, psn) == imm,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first 48 bytes of a block on the wire, of a frame of 4096 bytes; 80 zeros follow.
    const WIRE: [u8; 48] = [
        0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0x6b, 0x0c, 0x5c, 0xcc, 0x13, 0x90, 0x33, 0x92, 0, 0,
        0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x6b, 0x0c, 0x5c, 0xcc, 0x13, 0x92, 0x94, 0xa5,
    ];

    #[test]
    fn a_block_from_the_wire() {
        let mut block = [0; METADATA_LEN];
        block[..48].copy_from_slice(&WIRE);
        let metadata = FrameMetadata::decode(&block).expect("whole");
        let expected = FrameMetadata {
            flags: 0,
            psn: Psn::new(3),
            crc: 0,
            first_data: FrameTime { seconds: 0x6b0c_5ccc, nanoseconds: 0x1390_3392 },
            bytes_written: 4096,
            frame_number: 0,
            created: FrameTime { seconds: 0x6b0c_5ccc, nanoseconds: 0x1392_94a5 },
        };
        assert_eq!(metadata, expected);
        assert_eq!(metadata.encode(), block);
        assert!(!metadata.ended_early());
        let between = metadata.created.since_epoch() - metadata.first_data.since_epoch();
        assert_eq!(between, Duration::from_nanos(0x1392_94a5 - 0x1390_3392));
    }

    #[test]
    fn each_field_sits_in_its_place() {
        let metadata = FrameMetadata {
            flags: 0x0102_0304,
            psn: Psn::new(0x05_0607),
            crc: 0x0809_0a0b,
            first_data: FrameTime { seconds: 0x0c0d_0e0f_1011_1213, nanoseconds: 0x1415_1617 },
            bytes_written: 0x1819_1a1b_1c1d_1e1f,
            frame_number: 0x2223,
            created: FrameTime { seconds: 0x2425_2627_2829_2a2b, nanoseconds: 0x2c2d_2e2f },
        };
        let block = metadata.encode();
        let expected: Vec<u8> =
            (0..48).map(|at| if [4, 32, 33].contains(&at) { 0 } else { at + u8::from(at < 4) }).collect();
        assert_eq!((&block[..48], &block[48..]), (&expected[..], &[0; 80][..]));
    }

    #[test]
    fn reserved_bytes_and_a_short_block() {
        let mut block = [0xA5; METADATA_LEN + 1];
        let clean = FrameMetadata::decode(&block).expect("whole");
        assert_eq!(clean.psn, Psn::new(0xA5_A5A5));
        for reserved in [4, 32, 33, 48, 127, 128] {
            block[reserved] = 0x5A;
        }
        assert_eq!(FrameMetadata::decode(&block), Ok(clean));
        assert_eq!(FrameMetadata::decode(&block[..127]), Err(ShortMetadata { len: 127 }));
    }

    #[test]
    fn metadata_lies_behind_the_frame() {
        assert_eq!([0, 1, 128, 129, u32::MAX].map(FrameMetadata::offset), [0, 128, 128, 256, 1 << 32]);
    }

    #[test]
    fn immediates_of_the_wire() {
        let hsb = ImmediateLayout::Hsb;
        assert_eq!((hsb.page(0x3001), hsb.psn(0x3001)), (1, Some(3)));
        assert_eq!(hsb.encode(2, Psn::new(0x10)), 0x0001_0002);
        assert_eq!(hsb.encode(0x1FFF, Psn::new(0xFF_FFFF)), 0xFFFF_FFFF);
        assert_eq!(ImmediateLayout::Hsb2510.encode(2, Psn::new(0x12_3456)), 0x1234_5602);
        assert_eq!(ImmediateLayout::Hsb2510.psn(0x1234_5602), Some(0x12_3456));
        assert_eq!((ImmediateLayout::Slot.page(0x3001), ImmediateLayout::Slot.psn(0x3001)), (0x3001, None));
    }

    #[test]
    fn the_version_tells_the_layout() {
        let layouts = [0x2501, 0x2602, 0x2603, 0x2606].map(ImmediateLayout::of_version);
        assert_eq!(
            layouts,
            [ImmediateLayout::Hsb2510, ImmediateLayout::Hsb2510, ImmediateLayout::Hsb, ImmediateLayout::Hsb]
        );
        assert_eq!(layouts.map(ImmediateLayout::pages), [256, 256, 4096, 4096]);
    }

    proptest! {
        #[test]
        fn metadata_survives_its_bytes(
            flags: u32, psn: u32, crc: u32, seconds: u64, nanoseconds: u32, bytes_written: u64, frame_number: u16,
        ) {
            let first_data = FrameTime { seconds, nanoseconds };
            let created = FrameTime { seconds: !seconds, nanoseconds: !nanoseconds };
            let psn = Psn::new(psn);
            let metadata = FrameMetadata { flags, psn, crc, first_data, bytes_written, frame_number, created };
            prop_assert_eq!(FrameMetadata::decode(&metadata.encode()), Ok(metadata));
        }

        #[test]
        fn immediates_survive(page: u32, psn: u32) {
            let psn = Psn::new(psn);
            for layout in [ImmediateLayout::Slot, ImmediateLayout::Hsb, ImmediateLayout::Hsb2510] {
                let page = layout.page(page);
                let imm = layout.encode(page, psn);
                prop_assert_eq!(layout.page(imm), page);
                prop_assert!(layout.agrees(imm, psn));
                prop_assert_eq!(layout.agrees(imm, psn.next()), layout == ImmediateLayout::Slot);
            }
        }
    }
}
