//! Packets of somebody who means harm, through real sockets.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use common::{End, REGION, fresh_addr, open, pair, qp_on, wait_for};
use roce_core::{Mtu, PeerEndpoint, Psn, Qpn, RecvWr, Rkey, UcQp, UcRecv, Verb, WireStats};
use roce_soft::DropReason::{self, *};
use roce_soft::wire::{Bth, Flow, Header, Opcode, Reth, icrc};

/// A plain UDP socket that makes up packets.
struct Forger {
    socket: UdpSocket,
    flow: Flow,
    psn: Psn,
}

impl Forger {
    fn new(from: Ipv4Addr, to: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        let src = SocketAddrV4::new(from, socket.local_addr().unwrap().port());
        Self { socket, flow: Flow { src, dst: SocketAddrV4::new(to, 4791) }, psn: Psn::new(0) }
    }

    fn raw(&self, datagram: &[u8]) {
        assert_eq!(self.socket.send_to(datagram, self.flow.dst).unwrap(), datagram.len());
    }

    fn packet(&mut self, qpn: Qpn, opcode: u8, reth: Option<Reth>, payload: &[u8]) -> Vec<u8> {
        let opcode = Opcode::from_byte(opcode).unwrap();
        let bth = Bth::new(opcode, qpn, self.psn, payload.len());
        self.psn = self.psn.next();
        Header { bth, reth, imm: opcode.has_imm().then_some(0) }.packet(&self.flow, payload)
    }

    fn send(&mut self, qpn: Qpn, opcode: u8, reth: Option<Reth>, payload: &[u8]) {
        let packet = self.packet(qpn, opcode, reth, payload);
        self.raw(&packet);
    }
}

/// A queue pair that believes the forger to be its peer. It has one receive of 64 bytes.
fn victim(mtu: Mtu) -> (End, Forger) {
    let device = open(fresh_addr());
    let forger_ip = fresh_addr();
    let victim = qp_on(&device, Some(mtu));
    let forger = Forger::new(forger_ip, victim.qp.local_ip());
    let mut end = victim.connect(&PeerEndpoint { qpn: Qpn::from_low_bits(2), rkey: None, ip: forger_ip });
    end.post(77, 0, 64);
    (end, forger)
}

/// Polls until `reason` was counted `n` times; nothing may complete.
fn expect_drops(end: &mut End, reason: DropReason, n: u64) {
    wait_for(&format!("{n} drops for {reason:?}, {:?}", end.stats.snapshot()), || {
        assert_eq!(end.poll(), None);
        (end.stats.dropped(reason) == n).then_some(())
    });
}

/// Nothing was written, and the receive is still there.
fn expect_unharmed(mut end: End, mut forger: Forger) {
    assert_eq!(end.rx.get(0, REGION), vec![0; REGION]);
    forger.send(end.local.qpn, 0x24, None, &[9; 64]);
    assert_eq!(end.next().id, 77);
    assert_eq!(end.rx.get(0, 65), [vec![9; 64], vec![0]].concat());
}

#[test]
fn what_does_not_belong_is_dropped_and_counted() {
    let (mut end, mut forger) = victim(Mtu::B256);
    let (qpn, rkey) = (end.local.qpn, end.local.rkey.unwrap());
    let to = |addr, rkey: Rkey, len| Some(Reth { addr, rkey, len });

    forger.send(Qpn::from_low_bits(qpn.get() ^ 1), 0x24, None, &[1; 8]);
    expect_drops(&mut end, UnknownQp, 1);
    forger.send(qpn, 0x2A, to(0, Rkey::new(!rkey.get()), 8), &[1; 8]);
    expect_drops(&mut end, WrongRkey, 1);
    for (addr, len) in
        [(REGION as u64, 8), (REGION as u64 - 7, 8), (u64::MAX, 8), (u64::MAX - 7, 8), (1 << 63, 8)]
    {
        forger.send(qpn, 0x2A, to(addr, rkey, len), &[1; 8]);
    }
    expect_drops(&mut end, OutOfBounds, 5);
    for len in [0, 7, 9, 256] {
        forger.send(qpn, 0x2A, to(0, rkey, len), &[1; 8]);
    }
    expect_drops(&mut end, BadLength, 4);
    forger.send(qpn, 0x26, to(0, rkey, u32::MAX), &[1; 256]);
    expect_drops(&mut end, OutOfBounds, 6);
    forger.send(qpn, 0x24, None, &[1; 65]);
    expect_drops(&mut end, BadLength, 5);
    forger.send(qpn, 0x21, None, &[1; 256]);
    forger.send(qpn, 0x28, None, &[1; 8]);
    expect_drops(&mut end, OpcodeSequence, 1);
    expect_drops(&mut end, RestOfMessage, 1);
    expect_unharmed(end, forger);
}

#[test]
fn broken_bytes_are_dropped_and_counted() {
    let (mut end, mut forger) = victim(Mtu::B256);
    let qpn = end.local.qpn;
    let whole = forger.packet(qpn, 0x24, None, &[1; 64]);
    for len in 0..16 {
        forger.raw(&whole[..len]);
    }
    expect_drops(&mut end, Truncated, 16);
    for len in 16..whole.len() {
        forger.raw(&whole[..len]);
    }
    expect_drops(&mut end, BadIcrc, whole.len() as u64 - 16);
    let before = end.stats.dropped(BadIcrc);
    for at in (5..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        forger.raw(&damaged);
    }
    expect_drops(&mut end, BadIcrc, before + (5..whole.len()).step_by(7).count() as u64);
    forger.raw(&[0xA5; 9000]);
    expect_drops(&mut end, Truncated, 17);

    // Whole, and nothing that we speak: RC SEND ONLY, another version, another partition.
    for (i, (at, value, reason)) in
        [(0, 0x04, UnknownOpcode), (1, 0x01, BadHeader), (2, 0x00, BadHeader)].into_iter().enumerate()
    {
        let mut strange = whole.clone();
        strange[at] = value;
        icrc::seal(&forger.flow, &mut strange);
        forger.raw(&strange);
        expect_drops(&mut end, reason, if i == 2 { 2 } else { 1 });
    }
    expect_unharmed(end, forger);
}

#[test]
fn only_the_peer_is_heard() {
    let (mut end, forger) = victim(Mtu::B256);
    let mut stranger = Forger::new(fresh_addr(), end.local.ip);
    stranger.send(end.local.qpn, 0x24, None, &[1; 8]);
    let reth = Reth { addr: 0, rkey: end.local.rkey.unwrap(), len: 8 };
    stranger.send(end.local.qpn, 0x2B, Some(reth), &[1; 8]);
    expect_drops(&mut end, WrongSource, 2);
    expect_unharmed(end, forger);
}

/// A peer chooses its UDP port as it likes, and another one for each queue pair; it may have many at once.
#[test]
fn packets_of_all_ports_lengths_and_ids_take_turns() {
    let (mut end, mut forger) = victim(Mtu::B1024);
    let ip = *forger.flow.src.ip();
    let mut others: Vec<_> = (0..3).map(|_| Forger::new(ip, end.local.ip)).collect();
    assert_eq!(end.poll(), None);
    for round in 0..40u32 {
        for other in &mut others {
            let len = [4, 64, 8, 1000, 64][round as usize % 5];
            other.psn = forger.psn;
            let mut packet = other.packet(end.local.qpn, 0x24, None, &vec![round as u8; len]);
            forger.psn = other.psn;
            if round % 3 == 0 {
                packet[4] = 0xC0; // a router's congestion bits, which no ICRC covers
            }
            end.post(round, 0, 1024);
            other.raw(&packet);
            end.next();
            assert_eq!(end.rx.get(0, len), vec![round as u8; len]);
        }
    }
    assert_eq!((end.stats.dropped(BadIcrc), end.stats.lost_packets()), (0, 0));
}

#[test]
fn a_queue_pair_in_init_hears_nobody() {
    let device = open(fresh_addr());
    let mut qp = qp_on(&device, None);
    let mut driver = qp_on(&device, None).connect(&qp.endpoint());
    qp.qp.post_recv(RecvWr { id: 0, offset: 0, len: 64 }).unwrap();
    let mut forger = Forger::new(fresh_addr(), qp.qp.local_ip());
    forger.send(qp.qp.qpn(), 0x24, None, &[1; 8]);
    let stats = qp.qp.stats();
    wait_for("the drop", || {
        driver.poll();
        (stats.dropped(NotReady) == 1).then_some(())
    });
    assert_eq!(qp.rx.get(0, 64), [0; 64]);
}

#[test]
fn no_receive_no_message() {
    let (mut end, mut forger) = victim(Mtu::B256);
    forger.send(end.local.qpn, 0x24, None, &[1; 8]);
    assert_eq!(end.next().id, 77);
    forger.send(end.local.qpn, 0x24, None, &[2; 8]);
    let reth = Reth { addr: 0, rkey: end.local.rkey.unwrap(), len: 8 };
    forger.send(end.local.qpn, 0x2B, Some(reth), &[2; 8]);
    expect_drops(&mut end, NoReceive, 2);
    assert_eq!(end.rx.get(0, 8), [1; 8]);
}

#[test]
fn an_fpga_fills_the_ethernet_frame_whatever_the_path_mtu() {
    let (mut end, mut forger) = victim(Mtu::B1024);
    forger.psn = Psn::new(5_000_000);
    let reth = Reth { addr: 128, rkey: end.local.rkey.unwrap(), len: 1408 };
    forger.send(end.local.qpn, 0x2B, Some(reth), &[7; 1408]);
    assert_eq!(end.next().result.unwrap().len, 1408);
    assert_eq!(end.rx.get(128, 1408), [7; 1408]);
    assert_eq!(end.stats.lost_packets(), 0, "where its numbers start says nothing");
}

#[test]
fn a_flood_of_noise_does_not_reach_the_message() {
    let (mut a, mut b) = pair(None);
    let mut noise = Forger::new(fresh_addr(), b.local.ip);
    for i in 0..200u32 {
        let bytes: Vec<u8> = (0..i).map(|j| (i * j) as u8).collect();
        noise.raw(&bytes);
        noise.send(b.local.qpn, 0x24, None, &bytes);
        b.post(i, 0, 64);
        a.stage(0, 64, Verb::Send { imm: Some(i) });
        a.flush();
        assert_eq!(b.next().result.unwrap().imm, Some(i));
    }
    wait_for("all noise to be counted", || {
        assert_eq!(b.poll(), None);
        (b.stats.dropped(WrongSource) == 200).then_some(())
    });
    assert_eq!(b.recv.poll(&mut []).unwrap(), 0);
}
