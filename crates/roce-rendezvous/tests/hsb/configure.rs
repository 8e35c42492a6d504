//! What a configuration writes, in which order, and what is refused before anything is written.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use roce_core::{Mtu, Qpn, Rkey};
use roce_rendezvous::hsb::{FPGA_QPN, HsbError, HsbRendezvous, Mac, RoceConfig};
use roce_rendezvous::{Blocking, Geometry, Offer, Peer, Rendezvous, TxMode};

use super::board::{Done, FakeBoard, Manners};
use super::{PATIENT, connect, own_ip};

const QPN: Qpn = Qpn::from_low_bits(0x123);
const RKEY: Rkey = Rkey::new(0xCAFE_BABE);

fn ring(ip: Ipv4Addr, pages: u32) -> RoceConfig {
    RoceConfig {
        mac: Mac([1, 2, 3, 4, 5, 6]),
        metadata: true,
        ..RoceConfig::new(QPN, RKEY, ip, 4096, 4224, pages)
    }
}

/// From the masked port on: everything that a ring of two pages takes.
fn expected(ip: Ipv4Addr) -> Vec<Done> {
    let writes = [
        (0x0200_030C, 0xF0),
        (0x0200_0304, 11),
        (0x0200_0308, 12288),
        (0x1018, 4096),
        (0x1020, 0x0304_0506),
        (0x1024, 0x0102),
        (0x1028, ip.to_bits()),
        (0x102C, 4791),
        (0x0100_000C, 0),
        (0x1000, 0x123),
        (0x1004, 0xCAFE_BABE),
        (0x1008, 0),
        (0x100C, 0),
        (0x1010, 33),
        (0x1014, 1),
    ];
    let mut done = vec![Done::Read(0x0200_030C)];
    done.extend(writes.map(|(address, data)| Done::Write(address, data)));
    done.extend([Done::Read(0x0200_030C), Done::Write(0x0200_030C, 0xF1)]);
    done
}

#[tokio::test]
async fn registers_are_written_in_order_and_other_ports_stream_on() {
    let board = FakeBoard::start(Manners::default());
    let mut client = connect(board.address).await;
    client.write(0x0200_030C, 0xF1).await.unwrap();
    board.take_done();
    let ip = own_ip();
    client.configure_roce(&ring(ip, 2)).await.unwrap();
    assert_eq!(board.take_done(), expected(ip));

    client.unconfigure_roce(&ring(ip, 2)).await.unwrap();
    let mut zeroed = vec![Done::Read(0x0200_030C), Done::Write(0x0200_030C, 0xF0)];
    let order =
        [0x1018, 0x1000, 0x1004, 0x1008, 0x100C, 0x1010, 0x1014, 0x1020, 0x1024, 0x1028, 0x102C, 0x0100_000C];
    zeroed.extend(order.map(|address| Done::Write(address, 0)));
    assert_eq!(board.take_done(), zeroed);
}

#[tokio::test]
async fn versions_decide_and_a_refusal_writes_nothing() {
    for (version, pages, supported) in [
        (0x2500, 1, false),
        (0x2501, 4, true),
        (0x2601, 4, true),
        (0x2601, 5, false),
        (0x2602, 5, true),
        (0x2606, 4096, true),
        (0x2606, 4097, false),
        (0xBADA_DD12, 1, false),
    ] {
        let board = FakeBoard::start(Manners { version, ..Manners::default() });
        let mut client = connect(board.address).await;
        board.take_done();
        let result = client.configure_roce(&ring(own_ip(), pages)).await;
        assert_eq!(result.is_ok(), supported, "{version:#x} {pages} {result:?}");
        if let Err(error) = result {
            assert_eq!(board.take_done(), []);
            let words = error.to_string();
            match error {
                HsbError::Version { .. } => {
                    assert!(
                        words.contains(&format!("{version:#06x}")) && words.contains("0x2501"),
                        "{words}"
                    );
                }
                other => assert!(matches!(other, HsbError::Config { field: "pages", .. }), "{other}"),
            }
        }
    }
}

#[tokio::test]
async fn an_old_board_is_told_the_address_of_each_page() {
    let board = FakeBoard::start(Manners { version: 0x2510, ..Manners::default() });
    let mut client = connect(board.address).await;
    client.configure_roce(&ring(own_ip(), 3)).await.unwrap();
    let words = [0x1008, 0x100C, 0x1010, 0x1014, 0x101C].map(|address| board.register(address));
    assert_eq!(words, [0, 33, 66, 0, 7].map(Some));
    // One immediate more around each packet, but no page unit less.
    assert_eq!(board.register(0x0200_0304), Some(11));
}

fn offer(geometry: Option<Geometry>) -> Offer {
    Offer { qpn: QPN, rkey: RKEY, ip: Ipv4Addr::LOCALHOST, geometry, lease: false }
}

#[tokio::test]
async fn an_exchange_connects_the_queue_pair_before_the_fpga_streams() {
    let board = FakeBoard::start(Manners::default());
    let template = RoceConfig { frame_size: 256, ..ring(Ipv4Addr::UNSPECIFIED, 1) };
    let mut fpga =
        HsbRendezvous::new(connect(board.address).await, RoceConfig { mac: Mac([0; 6]), ..template });
    board.take_done();
    let before = Mutex::new(None);
    let slots = Geometry { slots: 64, slot_size: 384, frame_size: 8, mtu: Mtu::B1024, tx_mode: TxMode::Send };
    let connect = async |peer: Peer| {
        *before.lock().unwrap() = Some((peer, board.take_done()));
        Ok::<(), Infallible>(())
    };
    let peer = fpga.exchange(&offer(Some(slots)), connect).await.unwrap();
    let (connected_to, done) = before.into_inner().unwrap().unwrap();
    assert_eq!((connected_to, done), (peer, vec![]), "nothing was written before");
    assert_eq!((peer.endpoint.qpn, peer.endpoint.rkey), (FPGA_QPN, None));
    assert_eq!((peer.endpoint.ip, peer.geometry), (*board.address.ip(), None));
    let words = [0x1000, 0x1004, 0x1010, 0x1014, 0x1018, 0x1020, 0x1028, 0x0200_030C];
    let told = [0x123, 0xCAFE_BABE, 3, 63, 256, 0, 0x7F00_0001, 1];
    assert_eq!(words.map(|address| board.register(address)), told.map(Some));
    assert!(fpga.configured().is_some());

    fpga.unconfigure().await.unwrap();
    assert_eq!(board.register(0x0200_030C), Some(0));
    board.take_done();
    fpga.unconfigure().await.unwrap();
    assert_eq!(board.take_done(), [], "once is enough");
}

#[tokio::test]
async fn an_exchange_that_cannot_work_tells_the_fpga_nothing() {
    let board = FakeBoard::start(Manners::default());
    let mut fpga = HsbRendezvous::new(connect(board.address).await, ring(Ipv4Addr::UNSPECIFIED, 2));
    board.take_done();
    let error = fpga.exchange(&offer(None), async |_| Err(io::Error::other("no route"))).await.unwrap_err();
    assert!(matches!(error, HsbError::Connect { .. }) && error.to_string().contains("no route"), "{error}");

    let small = Geometry { slots: 2, slot_size: 4096, frame_size: 8, mtu: Mtu::B1024, tx_mode: TxMode::Send };
    let never = async |_| -> Result<(), Infallible> { unreachable!("the ring was refused") };
    let error = fpga.exchange(&offer(Some(small)), never).await.unwrap_err();
    assert!(matches!(error, HsbError::Config { field: "page_size", .. }), "{error}");

    let strange = Offer { ip: Ipv4Addr::new(192, 0, 2, 1), ..offer(None) };
    let mut unknown = HsbRendezvous::new(
        connect(board.address).await,
        RoceConfig { mac: Mac([0; 6]), ..ring(Ipv4Addr::UNSPECIFIED, 2) },
    );
    let never = async |_| -> Result<(), Infallible> { unreachable!("the address was refused") };
    let error = unknown.exchange(&strange, never).await.unwrap_err();
    assert!(matches!(error, HsbError::NoMac { .. }), "{error}");
    assert_eq!(board.take_writes(), []);
}

#[test]
fn the_same_without_an_async_runtime() {
    let board = FakeBoard::start(Manners::default());
    let mut fpga = Blocking::fpga(board.address, PATIENT, ring(Ipv4Addr::UNSPECIFIED, 2)).unwrap();
    fpga = fpga.with_fpga_qpn(Qpn::from_low_bits(4));
    let peer = fpga.exchange(&offer(None), |_| Ok::<(), Infallible>(())).unwrap();
    assert_eq!((peer.endpoint.qpn.get(), board.register(0x0200_030C)), (4, Some(1)));
    fpga.unconfigure().unwrap();
    assert_eq!(board.register(0x0200_030C), Some(0));
}
