//! Messages between queue pairs over real sockets.

#![allow(clippy::cast_possible_truncation)]

mod common;

use common::{DEPTH, End, REGION, connect, fresh_addr, open, pair, pattern, qp_on, wait_for};
use roce_core::{
    Device, Lead, Mtu, PostError, QpAttr, Received, RecvCompletion, RecvKind, RecvWr, RegionId, SendWr, Sge,
    UcQp, UcRecv, UcSend, Verb,
};
use roce_soft::{DropReason, SoftConfig, SoftDevice, SoftError};

/// Sends a message with every operation, and checks what arrives.
fn exchange(from: &mut End, to: &mut End, mtu: usize, len: usize, seed: u32) {
    let bytes = pattern(seed, len);
    from.tx.set(24, &bytes);

    to.post(seed, 4096, len as u32 + 5);
    from.stage(24, len as u32, Verb::Send { imm: None });
    from.flush();
    let got = to.next();
    assert_eq!(got.id, seed);
    assert_eq!(got.result, Ok(Received::new(RecvKind::Send, len as u32, None)));
    assert_eq!(to.rx.get(4096, len), bytes);
    assert_eq!(to.rx.get(4096 + len, 16), [0; 16]);
    to.rx.set(4096, &vec![0; len]);

    to.post(seed + 1, 8, len as u32);
    from.stage(24, len as u32, Verb::Send { imm: Some(0xDEAD_0000 + seed) });
    from.flush();
    let expected = Received::new(RecvKind::Send, len as u32, Some(0xDEAD_0000 + seed));
    assert_eq!(to.next().result, Ok(expected));
    assert_eq!(to.rx.get(8, len), bytes);
    to.rx.set(8, &vec![0; len]);

    to.post(seed + 2, 0, 0);
    from.stage(24, len as u32, from.write(3001, None));
    from.stage(24, len as u32, from.write(30_001, Some(seed)));
    from.flush();
    let got = to.next();
    assert_eq!(got.id, seed + 2);
    // What goes before it is told: the packets of the plain WRITE.
    let lead = Lead { missed: 0, packets: len.div_ceil(mtu).max(1) as u32 };
    let expected = Received { lead, ..Received::new(RecvKind::WriteWithImm, len as u32, Some(seed)) };
    assert_eq!(got.result, Ok(expected));
    assert_eq!(to.rx.get(3001, len), bytes);
    assert_eq!(to.rx.get(30_001, len), bytes);
    to.rx.set(0, &vec![0; REGION]);
}

#[test]
fn every_operation_from_nothing_to_five_packets() {
    for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
        let (mut a, mut b) = pair(Some(mtu));
        let mtu = mtu.bytes() as usize;
        for (i, len) in
            [0, 1, 3, 64, 384, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 2, 5 * mtu].into_iter().enumerate()
        {
            exchange(&mut a, &mut b, mtu, len, 10 * i as u32);
            exchange(&mut b, &mut a, mtu, len, 10 * i as u32 + 5);
        }
        assert_eq!(a.stats.lost_packets() + b.stats.lost_packets(), 0);
        for (reason, name) in DropReason::ALL {
            assert_eq!(a.stats.dropped(reason) + b.stats.dropped(reason), 0, "{name}");
        }
    }
}

#[test]
fn path_mtu_is_that_of_the_interface() {
    let device = open(fresh_addr());
    assert_eq!(qp_on(&device, None).qp.path_mtu(), Mtu::B4096);
    assert_eq!(qp_on(&device, Some(Mtu::B512)).qp.path_mtu(), Mtu::B512);
}

#[test]
fn a_forwarder_sends_from_where_it_received() {
    let (mut a, mut b) = pair(None);
    b.post(0, 512, 64);
    a.post(0, 0, 64);
    a.tx.set(0, &pattern(7, 64));
    a.stage(0, 64, Verb::Send { imm: None });
    a.flush();
    b.next();
    let sge = Sge { region: RegionId::Rx, offset: 512, len: 64 };
    b.send.stage(&SendWr { sge, verb: Verb::Send { imm: None } }).unwrap();
    b.flush();
    a.next();
    assert_eq!(a.rx.get(0, 64), pattern(7, 64));
}

#[test]
fn many_queue_pairs_share_a_socket() {
    let (one, two) = (open(fresh_addr()), open(fresh_addr()));
    let mut pairs: Vec<_> = (0..64).map(|_| connect(&one, &two, None)).collect();
    for (i, (a, b)) in pairs.iter_mut().enumerate() {
        b.post(i as u32, 0, 64);
        a.tx.set(0, &pattern(i as u32, 64));
        a.stage(0, 64, Verb::Send { imm: Some(i as u32) });
        a.flush();
    }
    for (i, (_, b)) in pairs.iter_mut().enumerate() {
        let got = b.next();
        assert_eq!((got.id, got.result.unwrap().imm), (i as u32, Some(i as u32)));
        assert_eq!(b.rx.get(0, 64), pattern(i as u32, 64));
    }
}

#[test]
fn two_queue_pairs_of_one_address_talk() {
    let device = open(fresh_addr());
    let (mut a, mut b) = connect(&device, &device, Some(Mtu::B1024));
    exchange(&mut a, &mut b, 1024, 1000, 1);
    exchange(&mut b, &mut a, 1024, 9000, 9);
}

#[test]
fn a_message_slot_is_free_once_staged() {
    let (mut a, mut b) = pair(None);
    for i in 0..8 {
        b.post(i, u64::from(i) * 64, 64);
        a.tx.set(0, &pattern(i, 64));
        a.stage(0, 64, Verb::Send { imm: None });
    }
    a.tx.set(0, &[0xFF; 64]);
    a.flush();
    for i in 0..8 {
        assert_eq!(b.next().id, i);
        assert_eq!(b.rx.get(i as usize * 64, 64), pattern(i, 64));
    }
}

#[test]
fn nothing_lands_before_somebody_polls() {
    let (mut a, mut b) = pair(None);
    for id in 0..3 {
        b.post(id, u64::from(id) * 64, 64);
        a.stage(0, 64, Verb::Send { imm: None });
    }
    a.flush();
    let mut out = [RecvCompletion::EMPTY; 3];
    for _ in 0..100 {
        assert_eq!(b.recv.poll_landed(&mut out), Ok(0));
    }
    assert_eq!(b.next().id, 0, "takes one");
    let mut rest = Vec::new();
    wait_for("the other two", || {
        // What the poll above left is told without the socket.
        let landed = b.recv.poll_landed(&mut out).expect("a good queue pair");
        rest.extend(out[..landed].iter().map(|completion| completion.id));
        if landed == 0 {
            let polled = b.recv.poll(&mut out).expect("a good queue pair");
            rest.extend(out[..polled].iter().map(|completion| completion.id));
        }
        (rest.len() == 2).then_some(())
    });
    assert_eq!(rest, [1, 2]);
}

#[test]
fn queues_push_back() {
    let (mut a, mut b) = pair(None);
    for i in 0..DEPTH {
        b.post(i, 0, 8);
        a.stage(0, 8, Verb::Send { imm: None });
    }
    let full = b.recv.post_recv(RecvWr { id: 0, offset: 0, len: 8 });
    assert!(matches!(full, Err(PostError::QueueFull)));
    let wr = SendWr { sge: Sge { region: RegionId::Tx, offset: 0, len: 8 }, verb: Verb::Send { imm: None } };
    assert!(matches!(a.send.stage(&wr), Err(PostError::QueueFull)));
    a.flush();
    a.send.stage(&wr).unwrap();
    assert_eq!(b.next().id, 0);
    b.post(DEPTH, 0, 8);
}

#[test]
fn what_lies_outside_is_refused() {
    let (mut a, mut b) = pair(None);
    for (offset, len) in
        [(REGION as u64, 1), (REGION as u64 - 3, 4), (u64::MAX, 1), (u64::MAX - 3, 8), (0, u32::MAX)]
    {
        let post = b.recv.post_recv(RecvWr { id: 0, offset, len });
        assert!(matches!(post, Err(PostError::OutOfRange { .. })));
        let sge = Sge { region: RegionId::Tx, offset, len };
        let stage = a.send.stage(&SendWr { sge, verb: Verb::Send { imm: None } });
        assert!(matches!(stage, Err(PostError::OutOfRange { .. })));
    }
    assert_eq!(a.send.flush().unwrap(), 0);
}

#[test]
fn queue_pairs_have_their_own_numbers_and_keys() {
    let addr = fresh_addr();
    let first = roce_core::Qpn::new(2).unwrap();
    let device =
        SoftDevice::open(SoftConfig { addr, first_qpn: Some(first), ..SoftConfig::default() }).unwrap();
    let again =
        SoftDevice::open(SoftConfig { addr, first_qpn: Some(first), ..SoftConfig::default() }).unwrap();
    let qps = [qp_on(&device, None), qp_on(&again, None), qp_on(&device, None)];
    assert_eq!(qps.each_ref().map(|u| u.qp.qpn().get()), [2, 3, 4]);
    assert_ne!(qps[0].qp.rkey(), qps[1].qp.rkey());
    drop(qps);
    assert_eq!(qp_on(&again, None).qp.qpn().get(), 2, "the number asked for, once it is free");
}

#[test]
fn numbers_wrap_around_the_reserved_ones() {
    let first_qpn = Some(roce_core::Qpn::MAX);
    let device =
        SoftDevice::open(SoftConfig { addr: fresh_addr(), first_qpn, ..SoftConfig::default() }).unwrap();
    let qps = [qp_on(&device, None), qp_on(&device, None)];
    assert_eq!(qps.each_ref().map(|u| u.qp.qpn().get()), [0xFF_FFFF, 2]);
}

#[test]
fn a_refused_connect_gives_the_queue_pair_back() {
    let (one, two) = (open(fresh_addr()), open(fresh_addr()));
    let (mut a, b) = (qp_on(&one, None), qp_on(&two, None));
    a.qp.post_recv(RecvWr { id: 5, offset: 0, len: 64 }).unwrap();
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let mut nobody = at_b;
    nobody.ip = [255; 4].into();
    let refused = a.qp.connect(&nobody).unwrap_err();
    assert!(matches!(refused.error, SoftError::Peer { .. }));
    let mut b = b.connect(&at_a);
    let mut a = common::Unconnected { qp: refused.qp, rx: a.rx, tx: a.tx }.connect(&at_b);
    b.stage(0, 64, Verb::Send { imm: None });
    b.flush();
    assert_eq!(a.next().id, 5);
}

#[test]
fn errors_say_what_to_do() {
    let addr = fresh_addr();
    let taken = std::net::UdpSocket::bind((addr, 4791)).unwrap();
    let error = SoftDevice::open(SoftConfig { addr, ..SoftConfig::default() }).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, SoftError::InUse { .. }));
    for part in ["rdma link delete", "127.x.y.z", &addr.to_string()] {
        assert!(text.contains(part), "{text}");
    }
    drop(taken);
    let device = SoftDevice::open(SoftConfig { addr, ..SoftConfig::default() }).unwrap();
    let attr = QpAttr {
        rx: common::Region::new(0),
        tx: common::Region::new(0),
        send_depth: u32::MAX,
        recv_depth: 0,
        mtu: None,
    };
    assert!(matches!(device.create_qp(&attr), Err(SoftError::Depth { what: "send depth", .. })));

    for addr in [[240, 0, 0, 1], [0, 0, 0, 0], [255, 255, 255, 255], [224, 0, 0, 1]] {
        let error = SoftDevice::open(SoftConfig { addr: addr.into(), ..SoftConfig::default() }).unwrap_err();
        assert!(error.to_string().contains("not an address of this machine"), "{error}");
    }
}

#[test]
fn an_empty_region_and_no_receives_will_do_for_a_sender() {
    let (one, two) = (open(fresh_addr()), open(fresh_addr()));
    let attr = QpAttr {
        rx: common::Region::new(0),
        tx: common::Region::new(64),
        send_depth: 1,
        recv_depth: 0,
        mtu: None,
    };
    let qp = one.create_qp(&attr).unwrap();
    let b = qp_on(&two, None);
    let (at_a, at_b) =
        (roce_core::PeerEndpoint { qpn: qp.qpn(), rkey: Some(qp.rkey()), ip: qp.local_ip() }, b.endpoint());
    let mut b = b.connect(&at_a);
    let (mut send, mut recv) = qp.connect(&at_b).unwrap();
    b.post(1, 0, 64);
    let sge = Sge { region: RegionId::Tx, offset: 0, len: 64 };
    send.stage(&SendWr { sge, verb: Verb::Send { imm: None } }).unwrap();
    send.flush().unwrap();
    assert_eq!(b.next().id, 1);
    assert!(matches!(recv.post_recv(RecvWr { id: 0, offset: 0, len: 0 }), Err(PostError::QueueFull)));
    assert_eq!(recv.poll(&mut []).unwrap(), 0);
}

#[test]
fn a_message_that_can_never_be_staged_is_an_error_and_not_back_pressure() {
    const LEN: u32 = 17 << 20;
    let device = open(fresh_addr());
    let tx = common::Region::new(LEN as usize);
    let attr = QpAttr { rx: common::Region::new(0), tx, send_depth: 4, recv_depth: 0, mtu: None };
    let peer = qp_on(&device, None).endpoint();
    let (mut send, _recv) = device.create_qp(&attr).unwrap().connect(&peer).unwrap();
    let wr =
        |len| SendWr { sge: Sge { region: RegionId::Tx, offset: 0, len }, verb: Verb::Send { imm: None } };
    let error = send.stage(&wr(LEN)).unwrap_err().to_string();
    assert!(error.contains("more than a soft queue pair can stage"), "{error}");
    send.stage(&wr(16 << 20)).unwrap();
    assert!(matches!(send.stage(&wr(1 << 20)), Err(PostError::QueueFull)));
}
