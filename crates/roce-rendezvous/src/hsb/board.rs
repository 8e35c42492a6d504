//! Which boards there are, and where a sensor's registers lie on them.

use std::net::Ipv4Addr;

use super::enumeration::{Announcement, Model};
use super::identity::{Mac, Serial, Uuid};
use super::regs::{HIF_ADDRESS, HIF_STRIDE, SIF_ADDRESS, SIF_STRIDE, VP_ADDRESS, VP_COUNT, VP_STRIDE};
use super::{HsbError, StartOptions};

/// What a board has. It is in no announcement, so a host has to know it by the board's UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoardKind {
    /// What people call it.
    pub name: &'static str,
    /// Sensors that can be told to stream.
    pub sensors: u32,
    /// Ethernet ports.
    pub data_planes: u32,
    /// Sensor interfaces, and so virtual ports, of each sensor.
    pub sifs_per_sensor: u32,
    /// Whether a register request may hold more than one pair.
    pub block_access: bool,
}

impl BoardKind {
    /// A board of a kind that is not known here, with what it has.
    pub const fn custom(sensors: u32, data_planes: u32, sifs_per_sensor: u32) -> Self {
        Self { name: "custom", sensors, data_planes, sifs_per_sensor, block_access: true }
    }

    /// The kind with this UUID; `None` if it is not known here.
    pub fn of(uuid: Uuid) -> Option<Self> {
        KINDS.iter().find(|known| known.uuid == uuid).map(|known| known.kind)
    }

    /// Where the registers lie by which `sensor` streams out of `data_plane`. Refuses what the board has not.
    pub fn place(&self, sensor: u32, data_plane: u32) -> Result<Place, HsbError> {
        let lacks = |field, value: u32, count: u32| HsbError::Config {
            field,
            value: value.into(),
            reason: format!("a {} board has {count}, counted from 0", self.name),
        };
        if sensor >= self.sensors {
            return Err(lacks("sensor", sensor, self.sensors));
        }
        if data_plane >= self.data_planes {
            return Err(lacks("data_plane", data_plane, self.data_planes));
        }
        Place::new(sensor, self.sifs_per_sensor, data_plane)
    }
}

/// Where the registers of one stream lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The virtual port's registers.
    pub vp_address: u32,
    /// The virtual port's bit in the mask of those that stream.
    pub vp_mask: u32,
    /// The host interface's registers.
    pub hif_address: u32,
    /// The sensor interface's registers.
    pub sif_address: u32,
}

impl Place {
    /// The first sensor and the first data plane: the same on all boards.
    pub const FIRST: Self =
        Self { vp_address: VP_ADDRESS, vp_mask: 1, hif_address: HIF_ADDRESS, sif_address: SIF_ADDRESS };

    /// Of `sensor` on a board with `sifs_per_sensor` sensor interfaces each. There are 32 virtual ports.
    pub fn new(sensor: u32, sifs_per_sensor: u32, data_plane: u32) -> Result<Self, HsbError> {
        let refuse = |field, value: u32, reason: &str| HsbError::Config {
            field,
            value: value.into(),
            reason: reason.to_owned(),
        };
        let port = sensor.checked_mul(sifs_per_sensor).filter(|&port| port < VP_COUNT);
        let port = port.ok_or_else(|| refuse("sensor", sensor, "its virtual port must be one of 32"))?;
        if data_plane > 0xFF {
            return Err(refuse("data_plane", data_plane, "it must be below 256"));
        }
        Ok(Self {
            vp_address: VP_ADDRESS + VP_STRIDE * port,
            vp_mask: 1 << port,
            hif_address: HIF_ADDRESS + HIF_STRIDE * data_plane,
            // By sensor, where the virtual port goes by sensor interface.
            sif_address: SIF_ADDRESS + SIF_STRIDE * sensor,
        })
    }
}

struct KnownKind {
    uuid: Uuid,
    /// In announcements of version 1.
    board_id: Option<u16>,
    kind: BoardKind,
}

const fn known(
    name: &'static str,
    uuid: u128,
    board_id: Option<u16>,
    [sensors, data_planes, sifs_per_sensor]: [u32; 3],
) -> KnownKind {
    let kind = BoardKind { name, sensors, data_planes, sifs_per_sensor, block_access: true };
    KnownKind { uuid: Uuid::from_u128(uuid), board_id, kind }
}

const fn without_blocks(known: KnownKind) -> KnownKind {
    KnownKind { kind: BoardKind { block_access: false, ..known.kind }, ..known }
}

/// The number of a 100G board in announcements of version 1.
const BOARD_ID_100G: u16 = 3;

const KINDS: [KnownKind; 7] = [
    known("hololink-lite", 0x889b7ce3_65a5_4247_8b05_4ff1904c3359, Some(2), [3, 2, 2]),
    known("hololink-nano", 0xd0f015e0_93b6_4473_b7d1_7dbd01cbeab5, Some(5), [2, 2, 2]),
    known("hololink-100G", 0x7a377bf7_76cb_4756_a4c5_7dddaed8354b, Some(BOARD_ID_100G), [2, 2, 2]),
    known("PolarFire", 0xed6a9292_debf_40ac_b603_a24e025309c1, Some(4), [2, 2, 1]),
    known("Leopard Eagle", 0xf1627640_b4dc_48af_a360_c55b09b3d230, Some(7), [3, 1, 1]),
    without_blocks(known("TauroTech DA326", 0x9957a9ac_36b5_4518_83ec_5d514aecb750, Some(10), [2, 1, 1])),
    known("emulator", 0x16af139b_9d14_482f_9805_3feb72ae0cec, None, [1, 1, 1]),
];

/// A board, as one of its data planes made itself known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Board {
    /// Where it is reached: what its announcement came from.
    pub peer_ip: Ipv4Addr,
    /// The interface of this machine that heard it.
    pub interface: String,
    /// This machine's address on that interface.
    pub local_ip: Ipv4Addr,
    /// What it says of itself.
    pub announcement: Announcement,
    /// What it has, where its UUID is known here. Set it for a board of your own.
    pub kind: Option<BoardKind>,
}

impl Board {
    pub(super) fn new(
        peer_ip: Ipv4Addr,
        interface: String,
        local_ip: Ipv4Addr,
        announcement: Announcement,
    ) -> Self {
        let kind = uuid_of(&announcement.model).and_then(BoardKind::of);
        Self { peer_ip, interface, local_ip, announcement, kind }
    }

    /// Which board it is: data planes with the same serial number are on the same board.
    pub const fn serial(&self) -> Serial {
        self.announcement.serial
    }

    /// The index of the Ethernet port.
    pub fn data_plane(&self) -> u32 {
        self.announcement.data_plane.into()
    }

    /// The Ethernet address of the port.
    pub const fn mac(&self) -> Mac {
        self.announcement.mac
    }

    /// The board's design: as announced, or by the board's number in an announcement of version 1.
    pub fn uuid(&self) -> Option<Uuid> {
        uuid_of(&self.announcement.model)
    }

    /// The version of its HSB IP.
    pub fn version(&self) -> u32 {
        self.announcement.hsb_ip_version.into()
    }

    /// Where `sensor` is told to stream out of this data plane. Fails where the kind is unknown.
    pub fn place(&self, sensor: u32) -> Result<Place, HsbError> {
        match self.kind {
            Some(kind) => kind.place(sensor, self.data_plane()),
            None => Err(HsbError::UnknownBoard { peer: self.peer_ip, uuid: self.uuid() }),
        }
    }

    /// How it is started.
    pub fn start_options(&self) -> StartOptions {
        let board_id = match self.announcement.model {
            Model::Legacy { board_id, .. } => Some(board_id),
            Model::Uuid { .. } => None,
        };
        StartOptions { null_sequence: board_id != Some(BOARD_ID_100G), ..StartOptions::default() }
    }
}

fn uuid_of(model: &Model) -> Option<Uuid> {
    match *model {
        Model::Uuid { uuid, .. } => Some(uuid),
        Model::Legacy { board_id, .. } => {
            KINDS.iter().find(|known| known.board_id == Some(board_id)).map(|known| known.uuid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(kind: &BoardKind, sensor: u32, data_plane: u32) -> Place {
        kind.place(sensor, data_plane).unwrap()
    }

    #[test]
    fn registers_by_sensor_and_data_plane() {
        let lite = BoardKind::of(KINDS[0].uuid).unwrap();
        assert_eq!(place(&lite, 0, 0), Place::FIRST);
        let second =
            Place { vp_address: 0x1080, vp_mask: 4, hif_address: 0x0201_0300, sif_address: 0x0101_0000 };
        assert_eq!(place(&lite, 1, 1), second);
        let polarfire = BoardKind::of(KINDS[3].uuid).unwrap();
        assert_eq!(place(&polarfire, 1, 0).vp_address, 0x1040);
        assert_eq!(place(&polarfire, 1, 0).vp_mask, 2);
    }

    #[test]
    fn what_a_board_has_not_is_refused_by_name() {
        let eagle = BoardKind::of(KINDS[4].uuid).unwrap();
        let words = |result: Result<Place, HsbError>| result.unwrap_err().to_string();
        assert!(words(eagle.place(3, 0)).contains("sensor = 0x3"));
        assert!(words(eagle.place(0, 1)).contains("Leopard Eagle board has 1"));
        assert!(words(BoardKind::custom(40, 1, 2).place(16, 0)).contains("one of 32"));
        assert!(BoardKind::custom(40, 1, 2).place(15, 0).is_ok());
        assert!(words(BoardKind::custom(1, 1000, 1).place(0, 256)).contains("below 256"));
    }

    #[test]
    fn kinds_are_told_apart() {
        for known in &KINDS {
            assert_eq!(BoardKind::of(known.uuid), Some(known.kind));
        }
        assert_eq!(BoardKind::of(Uuid::from_u128(1)), None);
        assert!(!BoardKind::of(KINDS[5].uuid).unwrap().block_access);
        for (id, name) in [(2, 0), (3, 2), (4, 3), (5, 1), (7, 4), (10, 5)] {
            let model = Model::Legacy { board_id: id, board_version: [0; 20] };
            assert_eq!(uuid_of(&model), Some(KINDS[name].uuid));
        }
        assert_eq!(uuid_of(&Model::Legacy { board_id: 6, board_version: [0; 20] }), None);
    }
}
