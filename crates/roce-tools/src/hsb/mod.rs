//! What the program `hsb` does: finds boards, and tells one of them where to stream.

mod place;
mod report;

use std::collections::BTreeSet;

use roce_rendezvous::hsb::Board;

use crate::Error;

pub use place::PlaceOptions;
pub(crate) use place::port_mask;
pub use report::{for_people, json};

/// The one board that was heard: its data plane `data_plane`, or its first. Several boards, or none, are an error
/// that tells how to choose.
pub fn the_one(boards: Vec<Board>, data_plane: Option<u32>) -> Result<Board, Error> {
    let serials: BTreeSet<_> = boards.iter().map(Board::serial).collect();
    if serials.len() > 1 {
        let heard: Vec<_> =
            boards.iter().map(|board| format!("{} (serial {})", board.peer_ip, board.serial())).collect();
        return Err(Error::Options(format!(
            "there is more than one board: {}; choose one with --hsb-ip",
            heard.join(", ")
        )));
    }
    let wanted = |board: &Board| data_plane.is_none_or(|wanted| board.data_plane() == wanted);
    boards.into_iter().filter(wanted).min_by_key(Board::data_plane).ok_or_else(|| {
        Error::Idle(
            "no such board made itself known; give its address with --hsb-ip, raise --timeout, or see `hsb discover`"
                .to_owned(),
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use roce_rendezvous::hsb::enumeration::{Announcement, HOST_PORT, Model};
    use roce_rendezvous::hsb::{BlockingDiscovery, DiscoveryConfig, Mac, Serial, Uuid};

    use super::*;

    /// Boards by serial number and data plane, as they are heard on loopback.
    pub(crate) fn heard(boards: &[(u8, u8)], uuid: Uuid) -> Vec<Board> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        let [low, high, ..] = std::process::id().to_le_bytes();
        let ip = Ipv4Addr::new(127, 96 | high & 0x1F, low, NEXT.fetch_add(1, Ordering::Relaxed));
        let address = SocketAddrV4::new(ip, HOST_PORT);
        let mut discovery = BlockingDiscovery::open(&DiscoveryConfig { address, interface: None }).unwrap();
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        for &(serial, data_plane) in boards {
            let said = Announcement {
                xid: 0,
                seconds: 0,
                flags: 1,
                ip,
                mac: Mac([2, 0, 0, 0, 0, serial]),
                data_plane,
                model: Model::Uuid { compat_id: 0x2603, uuid, packet_count: 0 },
                serial: Serial([0, 0, 0, 0, 0, 0, serial]),
                hsb_ip_version: 0x2606,
                fpga_crc: 0,
                fpga: None,
            };
            socket.send_to(&said.encode(), address).unwrap();
        }
        boards.iter().map(|_| discovery.find(Duration::from_secs(20), |_| true).unwrap()).collect()
    }

    #[test]
    fn one_board_is_chosen_by_itself_and_its_data_plane_by_number() {
        let uuid = Uuid::from_u128(1);
        let boards = heard(&[(1, 1), (1, 0)], uuid);
        assert_eq!(the_one(boards.clone(), None).unwrap().data_plane(), 0);
        assert_eq!(the_one(boards.clone(), Some(1)).unwrap().data_plane(), 1);
        assert!(the_one(boards, Some(2)).unwrap_err().to_string().contains("--hsb-ip"));
        let error = the_one(heard(&[(1, 0), (2, 0), (3, 0)], uuid), None).unwrap_err();
        assert!(
            matches!(error, Error::Options(_)) && error.to_string().contains("00000000000002"),
            "{error}"
        );
    }
}
