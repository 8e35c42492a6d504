//! The broadcast by which a board makes itself known, and the answer that gives it an address: as bytes.
//!
//! Both have the 300 bytes of BOOTP. Once a second a board broadcasts an [`Announcement`] from each of its
//! Ethernet ports, UDP port [`BOARD_PORT`] to [`HOST_PORT`], without being asked. A host may answer with a
//! [`Reply`], UDP port [`BOARD_PORT`], that sets the port's IP address. Numbers are big-endian, but for those of
//! the vendor area that are marked little-endian below. Parsing never panics, whatever the bytes.
//!
//! | offset in the vendor area | bytes | version 2 | version 1 |
//! | --- | --- | --- | --- |
//! | 0 | 1 | tag 0xE0 | = |
//! | 1 | 1 | tag length: 56 with the FPGA's own fields, else 4 | = |
//! | 2 | 4 | "NVDA" | = |
//! | 6 | 1 | data plane | = |
//! | 7 | 1 | 2 | 1 |
//! | 8 | 2 | compatibility id, little-endian | board id, little-endian |
//! | 10 | 20 | UUID (16), packet count (3), ignored (1) | board version |
//! | 30 | 7 | serial number | = |
//! | 37 | 2 | version of the HSB IP, little-endian | = |
//! | 39 | 2 | checksum of the image, little-endian | = |
//! | 41 | 17 | the FPGA's own: misc (4), PTP time (6 + 4), enumeration sequence (2), status (1) | = |

use std::net::Ipv4Addr;

use super::identity::{Mac, Serial, Uuid};

/// Bytes of an announcement and of a reply.
pub const LEN: usize = 300;
/// The UDP port that boards announce themselves to.
pub const HOST_PORT: u16 = 12267;
/// The UDP port that boards announce themselves from, and take replies on.
pub const BOARD_PORT: u16 = 12268;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAC_LEN: u8 = 6;

const XID: usize = 4;
const SECONDS: usize = 8;
const FLAGS: usize = 10;
const OWN_IP: usize = 12;
const NEW_IP: usize = 16;
const SERVER_IP: usize = 20;
const MAC: usize = 28;
const VENDOR: usize = 236;

const TAG: u8 = 0xE0;
const VENDOR_ID: [u8; 4] = *b"NVDA";
/// From the tag length to the end of the FPGA's own fields.
const TAG_LEN_FPGA: u8 = 56;
/// Only the vendor id counts.
const TAG_LEN_SHORT: u8 = 4;

const DATA_PLANE: usize = VENDOR + 6;
const VERSION: usize = VENDOR + 7;
const KIND: usize = VENDOR + 8;
const BODY: usize = VENDOR + 10;
const PACKET_COUNT: usize = VENDOR + 26;
const SERIAL: usize = VENDOR + 30;
const HSB_IP_VERSION: usize = VENDOR + 37;
const FPGA_CRC: usize = VENDOR + 39;
const MISC: usize = VENDOR + 41;
const PTP_SECONDS: usize = VENDOR + 45;
const PTP_NANOSECONDS: usize = VENDOR + 51;
const SEQUENCE: usize = VENDOR + 55;
const STATUS: usize = VENDOR + 57;

/// Bytes on the enumeration port that announce no board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnumerationError {
    /// Truncated or oversized.
    #[error("{0} bytes; an announcement has {LEN}")]
    Length(usize),
    /// A BOOTP message of another kind, or none.
    #[error("BOOTP operation {0}; an announcement has {REQUEST}, a reply {REPLY}")]
    Operation(u8),
    /// No Ethernet address.
    #[error("a hardware address of {0} bytes; an Ethernet address has {MAC_LEN}")]
    HardwareLength(u8),
    /// Foreign BOOTP.
    #[error("vendor tag {0:#04x}; a board has {TAG:#04x}")]
    Tag(u8),
    /// Another vendor's device.
    #[error("vendor id {0:02x?}; a board has \"NVDA\"")]
    Vendor([u8; 4]),
    /// A form of announcement that is not known here.
    #[error("enumeration version {0}; known are 1 and 2")]
    Version(u8),
}

/// What a board says of itself, from one of its Ethernet ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Repeated by a reply. An FPGA gives the index of the port.
    pub xid: u32,
    /// The low 16 bits of the board's PTP seconds, or of its uptime.
    pub seconds: u16,
    /// BOOTP's flags; an FPGA sends 1.
    pub flags: u16,
    /// The port's IP address, as the board has it.
    pub ip: Ipv4Addr,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The port's index.
    pub data_plane: u8,
    /// What the board is.
    pub model: Model,
    /// Which board: the same from all of its ports.
    pub serial: Serial,
    /// The version of the HSB IP, such as 0x2606.
    pub hsb_ip_version: u16,
    /// The checksum of the board's image; an FPGA sends 0.
    pub fpga_crc: u16,
    /// What only an FPGA tells.
    pub fpga: Option<FpgaFields>,
}

/// What a board is, as the two versions of the announcement have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// Version 1.
    Legacy {
        /// A number per kind of board.
        board_id: u16,
        /// In no fixed form.
        board_version: [u8; 20],
    },
    /// Version 2.
    Uuid {
        /// The oldest HSB IP whose hosts can work with this one.
        compat_id: u16,
        /// The board's design.
        uuid: Uuid,
        /// Packets that the port has sent; the low 24 bits are sent.
        packet_count: u32,
    },
}

/// What only an FPGA tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FpgaFields {
    /// From the EEPROM.
    pub misc: [u8; 4],
    /// PTP seconds; the low 48 bits are sent.
    pub ptp_seconds: u64,
    /// Nanoseconds within the PTP second.
    pub ptp_nanoseconds: u32,
    /// One more with each round of announcements.
    pub sequence: u16,
    /// The status of the HSB IP.
    pub status: u8,
}

impl Announcement {
    /// Reads an announcement. What no host needs is ignored, since some boards send whatever was in their memory.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnumerationError> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| EnumerationError::Length(bytes.len()))?;
        check(bytes)?;
        let model = match bytes[VERSION] {
            1 => Model::Legacy {
                board_id: u16::from_le_bytes(array(bytes, KIND)),
                board_version: array(bytes, BODY),
            },
            2 => {
                let [high, middle, low] = array(bytes, PACKET_COUNT);
                Model::Uuid {
                    compat_id: u16::from_le_bytes(array(bytes, KIND)),
                    uuid: Uuid(array(bytes, BODY)),
                    packet_count: u32::from_be_bytes([0, high, middle, low]),
                }
            }
            other => return Err(EnumerationError::Version(other)),
        };
        Ok(Self {
            xid: u32::from_be_bytes(array(bytes, XID)),
            seconds: u16::from_be_bytes(array(bytes, SECONDS)),
            flags: u16::from_be_bytes(array(bytes, FLAGS)),
            ip: Ipv4Addr::from(array::<4>(bytes, OWN_IP)),
            mac: Mac(array(bytes, MAC)),
            data_plane: bytes[DATA_PLANE],
            model,
            serial: Serial(array(bytes, SERIAL)),
            hsb_ip_version: u16::from_le_bytes(array(bytes, HSB_IP_VERSION)),
            fpga_crc: u16::from_le_bytes(array(bytes, FPGA_CRC)),
            fpga: (bytes[VENDOR + 1] >= TAG_LEN_FPGA).then(|| FpgaFields::parse(bytes)),
        })
    }

    /// Its bytes. What has no meaning is 0.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = head(REQUEST, self.xid, self.seconds, self.mac);
        put(&mut bytes, FLAGS, self.flags.to_be_bytes());
        put(&mut bytes, OWN_IP, self.ip.octets());
        let tag_len = if self.fpga.is_some() { TAG_LEN_FPGA } else { TAG_LEN_SHORT };
        put(&mut bytes, VENDOR, [TAG, tag_len]);
        put(&mut bytes, VENDOR + 2, VENDOR_ID);
        bytes[DATA_PLANE] = self.data_plane;
        self.model.encode(&mut bytes);
        put(&mut bytes, SERIAL, self.serial.0);
        put(&mut bytes, HSB_IP_VERSION, self.hsb_ip_version.to_le_bytes());
        put(&mut bytes, FPGA_CRC, self.fpga_crc.to_le_bytes());
        if let Some(fields) = self.fpga {
            fields.encode(&mut bytes);
        }
        bytes
    }
}

fn check(bytes: &[u8; LEN]) -> Result<(), EnumerationError> {
    if bytes[0] != REQUEST {
        return Err(EnumerationError::Operation(bytes[0]));
    }
    if bytes[2] != MAC_LEN {
        return Err(EnumerationError::HardwareLength(bytes[2]));
    }
    if bytes[VENDOR] != TAG {
        return Err(EnumerationError::Tag(bytes[VENDOR]));
    }
    match array(bytes, VENDOR + 2) {
        VENDOR_ID => Ok(()),
        other => Err(EnumerationError::Vendor(other)),
    }
}

impl Model {
    fn encode(&self, bytes: &mut [u8; LEN]) {
        match *self {
            Self::Legacy { board_id, board_version } => {
                bytes[VERSION] = 1;
                put(bytes, KIND, board_id.to_le_bytes());
                put(bytes, BODY, board_version);
            }
            Self::Uuid { compat_id, uuid, packet_count } => {
                bytes[VERSION] = 2;
                put(bytes, KIND, compat_id.to_le_bytes());
                put(bytes, BODY, uuid.0);
                let [_, high, middle, low] = packet_count.to_be_bytes();
                put(bytes, PACKET_COUNT, [high, middle, low]);
            }
        }
    }
}

impl FpgaFields {
    fn parse(bytes: &[u8; LEN]) -> Self {
        let [a, b, c, d, e, f] = array(bytes, PTP_SECONDS);
        Self {
            misc: array(bytes, MISC),
            ptp_seconds: u64::from_be_bytes([0, 0, a, b, c, d, e, f]),
            ptp_nanoseconds: u32::from_be_bytes(array(bytes, PTP_NANOSECONDS)),
            sequence: u16::from_be_bytes(array(bytes, SEQUENCE)),
            status: bytes[STATUS],
        }
    }

    fn encode(&self, bytes: &mut [u8; LEN]) {
        let [_, _, seconds @ ..] = self.ptp_seconds.to_be_bytes();
        put(bytes, MISC, self.misc);
        put(bytes, PTP_SECONDS, seconds);
        put(bytes, PTP_NANOSECONDS, self.ptp_nanoseconds.to_be_bytes());
        put(bytes, SEQUENCE, self.sequence.to_be_bytes());
        bytes[STATUS] = self.status;
    }
}

/// A host's answer to an announcement: the address that the port shall have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The announcement's.
    pub xid: u32,
    /// The announcement's.
    pub seconds: u16,
    /// Whom it is for: a port takes no reply with another's address.
    pub mac: Mac,
    /// The address that the port shall have.
    pub ip: Ipv4Addr,
    /// The host's.
    pub host_ip: Ipv4Addr,
}

impl Reply {
    /// Gives the port that sent `announcement` the address `ip`.
    pub const fn to(announcement: &Announcement, ip: Ipv4Addr, host_ip: Ipv4Addr) -> Self {
        Self { xid: announcement.xid, seconds: announcement.seconds, mac: announcement.mac, ip, host_ip }
    }

    /// Reads a reply as an FPGA does, which looks at no more than the operation and the addresses: all that ends
    /// before the hardware address does is truncated.
    pub fn parse(bytes: &[u8]) -> Result<Self, EnumerationError> {
        let Some(head) = bytes.first_chunk::<{ MAC + 6 }>() else {
            return Err(EnumerationError::Length(bytes.len()));
        };
        if head[0] != REPLY {
            return Err(EnumerationError::Operation(head[0]));
        }
        Ok(Self {
            xid: u32::from_be_bytes(array(head, XID)),
            seconds: u16::from_be_bytes(array(head, SECONDS)),
            mac: Mac(array(head, MAC)),
            ip: Ipv4Addr::from(array::<4>(head, NEW_IP)),
            host_ip: Ipv4Addr::from(array::<4>(head, SERVER_IP)),
        })
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let mut bytes = head(REPLY, self.xid, self.seconds, self.mac);
        put(&mut bytes, NEW_IP, self.ip.octets());
        put(&mut bytes, SERVER_IP, self.host_ip.octets());
        bytes
    }
}

/// What both have.
fn head(operation: u8, xid: u32, seconds: u16, mac: Mac) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    put(&mut bytes, 0, [operation, ETHERNET, MAC_LEN, 0]);
    put(&mut bytes, XID, xid.to_be_bytes());
    put(&mut bytes, SECONDS, seconds.to_be_bytes());
    put(&mut bytes, MAC, mac.0);
    bytes
}

/// The `N` bytes at `offset`, which is one of the constants above: within every packet whose length was checked.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

fn put<const N: usize>(bytes: &mut [u8; LEN], offset: usize, field: [u8; N]) {
    bytes[offset..offset + N].copy_from_slice(&field);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What an independent emulator broadcast on a real network; where nothing is meant it sends what was in its
    /// memory.
    fn captured() -> [u8; LEN] {
        let text = include_str!("testdata/announcement.hex");
        let bytes = text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
        bytes.collect::<Vec<u8>>().try_into().unwrap()
    }

    fn fpga() -> Announcement {
        Announcement {
            xid: 1,
            seconds: 0x1234,
            flags: 1,
            ip: Ipv4Addr::new(192, 168, 0, 3),
            mac: Mac([2, 0, 0, 0, 0, 3]),
            data_plane: 1,
            model: Model::Uuid {
                compat_id: 0x2603,
                uuid: Uuid::from_u128(0x889b_7ce3_65a5_4247_8b05_4ff1_904c_3359),
                packet_count: 0x01_0203,
            },
            serial: Serial([1, 2, 3, 4, 5, 6, 7]),
            hsb_ip_version: 0x2606,
            fpga_crc: 0,
            fpga: Some(FpgaFields {
                misc: [0xA, 0xB, 0xC, 0xD],
                ptp_seconds: 0x0102_0304_0506,
                ptp_nanoseconds: 0x0708_090A,
                sequence: 0x0B0C,
                status: 0x0D,
            }),
        }
    }

    #[test]
    fn what_an_independent_emulator_sends() {
        let board = Announcement::parse(&captured()).unwrap();
        let expected = Announcement {
            xid: 0,
            seconds: 0,
            flags: 0,
            ip: Ipv4Addr::new(192, 168, 0, 2),
            mac: Mac([0x1E, 0xB5, 0x79, 0x8B, 0x20, 0x3D]),
            data_plane: 0,
            model: Model::Uuid {
                compat_id: 0,
                uuid: "16af139b-9d14-482f-9805-3feb72ae0cec".parse().unwrap(),
                packet_count: 0,
            },
            serial: Serial([3, 1, 4, 1, 5, 9, 3]),
            hsb_ip_version: 0x2602,
            fpga_crc: 0x5AA5,
            fpga: None,
        };
        assert_eq!(board, expected);
        let mut meant = captured();
        for garbage in [16..28, 34..VENDOR, MISC..LEN] {
            meant[garbage].fill(0);
        }
        assert_eq!(board.encode(), meant);
    }

    #[test]
    fn every_field_of_an_fpga_has_its_place() {
        let bytes = fpga().encode();
        assert_eq!(bytes[..16], [1, 1, 6, 0, 0, 0, 0, 1, 0x12, 0x34, 0, 1, 192, 168, 0, 3]);
        assert_eq!(bytes[28..34], [2, 0, 0, 0, 0, 3]);
        let vendor = [
            0xE0, 56, b'N', b'V', b'D', b'A', 1, 2, 0x03, 0x26, 0x88, 0x9B, 0x7C, 0xE3, 0x65, 0xA5, 0x42,
            0x47, 0x8B, 0x05, 0x4F, 0xF1, 0x90, 0x4C, 0x33, 0x59, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 0x06,
            0x26, 0, 0, 0xA, 0xB, 0xC, 0xD, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xA, 0xB, 0xC, 0xD, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes[VENDOR..], vendor);
        let zero = bytes[16..28].iter().chain(&bytes[34..VENDOR]);
        assert_eq!(zero.copied().max(), Some(0));
        assert_eq!(Announcement::parse(&bytes), Ok(fpga()));
    }

    #[test]
    fn version_1_has_a_board_id_where_version_2_has_a_uuid() {
        let model = Model::Legacy { board_id: 3, board_version: *b"board version 20 byt" };
        let legacy = Announcement { model, hsb_ip_version: 0x2510, fpga: None, ..fpga() };
        let bytes = legacy.encode();
        assert_eq!(bytes[243..268], *b"\x01\x03\x00board version 20 byt\x01\x02");
        assert_eq!((bytes[273], bytes[274]), (0x10, 0x25));
        assert_eq!(Announcement::parse(&bytes), Ok(legacy));
    }

    #[test]
    fn what_announces_no_board_says_why() {
        let parse = |at: usize, value: u8| {
            let mut bytes = fpga().encode();
            bytes[at] = value;
            Announcement::parse(&bytes)
        };
        assert_eq!(parse(0, 2), Err(EnumerationError::Operation(2)));
        assert_eq!(parse(2, 16), Err(EnumerationError::HardwareLength(16)));
        // The magic cookie of BOOTP proper.
        assert_eq!(parse(VENDOR, 0x63), Err(EnumerationError::Tag(0x63)));
        assert_eq!(parse(VENDOR + 2, b'M'), Err(EnumerationError::Vendor(*b"MVDA")));
        for version in [0, 3, 255] {
            assert_eq!(parse(VERSION, version), Err(EnumerationError::Version(version)));
        }
        for len in [0, 1, 299, 301, 1472] {
            let mut bytes = fpga().encode().to_vec();
            bytes.resize(len, 0);
            assert_eq!(Announcement::parse(&bytes), Err(EnumerationError::Length(len)));
        }
    }

    #[test]
    fn a_reply_repeats_the_announcement_and_gives_an_address() {
        let reply = Reply::to(&fpga(), Ipv4Addr::new(10, 0, 0, 9), Ipv4Addr::new(10, 0, 0, 1));
        let bytes = reply.encode();
        assert_eq!(bytes[..12], [2, 1, 6, 0, 0, 0, 0, 1, 0x12, 0x34, 0, 0]);
        assert_eq!(bytes[12..24], [0, 0, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
        assert_eq!(bytes[28..34], fpga().mac.0);
        assert_eq!(Reply::parse(&bytes), Ok(reply));
        assert_eq!(Reply::parse(&bytes[..34]), Ok(reply));
        assert_eq!(Reply::parse(&bytes[..33]), Err(EnumerationError::Length(33)));
        assert_eq!(Reply::parse(&fpga().encode()), Err(EnumerationError::Operation(1)));
        assert_eq!(Announcement::parse(&bytes), Err(EnumerationError::Operation(2)));
    }

    fn any_model() -> impl Strategy<Value = Model> {
        let legacy = any::<(u16, [u8; 20])>()
            .prop_map(|(board_id, board_version)| Model::Legacy { board_id, board_version });
        let uuid =
            (any::<u16>(), any::<u128>(), 0..1_u32 << 24).prop_map(|(compat_id, uuid, packet_count)| {
                Model::Uuid { compat_id, uuid: Uuid::from_u128(uuid), packet_count }
            });
        prop_oneof![legacy, uuid]
    }

    fn any_fields() -> impl Strategy<Value = Option<FpgaFields>> {
        let fields = (any::<[u8; 4]>(), 0..1_u64 << 48, any::<(u32, u16, u8)>());
        prop::option::of(fields.prop_map(|(misc, ptp_seconds, (ptp_nanoseconds, sequence, status))| {
            FpgaFields { misc, ptp_seconds, ptp_nanoseconds, sequence, status }
        }))
    }

    proptest! {
        #[test]
        fn announcements_survive_the_wire(
            numbers in any::<(u32, u16, u16, u32, u8, u16, u16)>(),
            mac: [u8; 6],
            serial: [u8; 7],
            model in any_model(),
            fpga in any_fields(),
        ) {
            let (xid, seconds, flags, ip, data_plane, hsb_ip_version, fpga_crc) = numbers;
            let (ip, mac, serial) = (Ipv4Addr::from_bits(ip), Mac(mac), Serial(serial));
            let board = Announcement {
                xid, seconds, flags, ip, mac, data_plane, model, serial, hsb_ip_version, fpga_crc, fpga,
            };
            prop_assert_eq!(Announcement::parse(&board.encode()), Ok(board));
        }

        #[test]
        fn any_bytes_parse_or_are_refused(
            bytes in prop::collection::vec(any::<u8>(), LEN - 2..LEN + 2),
            head in 0..4_u8,
            known in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if known {
                (bytes[0], bytes[2], bytes[VERSION]) = (head, MAC_LEN, head);
                bytes[VENDOR] = TAG;
                bytes[VENDOR + 2..VENDOR + 6].copy_from_slice(&VENDOR_ID);
            }
            if let Ok(board) = Announcement::parse(&bytes) {
                prop_assert_eq!(Announcement::parse(&board.encode()), Ok(board));
            }
            if let Ok(reply) = Reply::parse(&bytes) {
                prop_assert_eq!(Reply::parse(&reply.encode()), Ok(reply));
            }
        }
    }
}
