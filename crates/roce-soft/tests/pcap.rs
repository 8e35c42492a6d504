//! The capture file: whole after every packet, and what it says is true.

#![allow(clippy::unwrap_used)]

mod common;

use common::{connect, fresh_addr, open, pattern, read_pcap};
use roce_core::{Mtu, Verb};
use roce_soft::wire::{Packet, icrc};
use roce_soft::{SoftConfig, SoftDevice};

#[test]
fn both_directions_with_right_headers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wire.pcap");
    let addr = fresh_addr();
    let device =
        SoftDevice::open(SoftConfig { addr, pcap: Some(path.clone()), ..SoftConfig::default() }).unwrap();
    let (mut a, mut b) = connect(&device, &open(fresh_addr()), Some(Mtu::B256));
    let bytes = pattern(3, 600);
    a.tx.set(0, &bytes);
    b.post(0, 0, 600);
    a.stage(0, 600, Verb::Send { imm: None });
    a.flush();
    b.next();
    a.post(0, 0, 0);
    b.stage(0, 32, b.write(64, Some(5)));
    b.flush();
    a.next();

    // The device is still open: nothing waits for its end.
    let packets = read_pcap(&path);
    let texts: Vec<String> = packets
        .iter()
        .map(|p| {
            assert_eq!(p.ip_id, 0);
            assert_eq!(p.ip_header[6..8], [0x40, 0], "DF");
            let sum: u32 = p.ip_header.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            assert_eq!((sum & 0xFFFF) + (sum >> 16), 0xFFFF, "the checksum makes the sum all ones");
            assert_eq!(icrc::verify(&p.flow, &p.datagram), Some(0));
            Packet::parse(&p.datagram).unwrap().to_string()
        })
        .collect();
    let (to_b, to_a) = (b.local.qpn, a.local.qpn);
    let rkey = a.local.rkey.unwrap();
    assert_eq!(
        texts,
        [
            format!("SEND_FIRST qp {to_b} psn 0 payload 256"),
            format!("SEND_MIDDLE qp {to_b} psn 1 payload 256"),
            format!("SEND_LAST qp {to_b} psn 2 payload 88"),
            format!("WRITE_ONLY_IMM qp {to_a} psn 0 va 0x40 rkey {rkey} dma 32 imm 0x5 payload 32"),
        ]
    );
    assert_eq!((*packets[0].flow.src.ip(), *packets[3].flow.dst.ip()), (addr, addr));
    let sent: Vec<u8> =
        packets[..3].iter().flat_map(|p| Packet::parse(&p.datagram).unwrap().payload.to_vec()).collect();
    assert_eq!(sent, bytes);
}

#[test]
fn packets_that_leave_together_are_each_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wire.pcap");
    let config = SoftConfig { addr: fresh_addr(), pcap: Some(path.clone()), ..SoftConfig::default() };
    let device = SoftDevice::open(config).unwrap();
    let (mut a, mut b) = connect(&device, &device, Some(Mtu::B256));
    // More than go with one call, and of two lengths.
    for n in 0..40 {
        b.post(n, 0, 512);
        a.stage(0, 300, Verb::Send { imm: None });
    }
    a.flush();
    (0..40).for_each(|n| assert_eq!(b.next().id, n));
    let packets = read_pcap(&path);
    let numbers = packets.iter().map(|p| Packet::parse(&p.datagram).unwrap().header.bth.psn.get());
    // As they left, and as they came.
    assert_eq!(numbers.collect::<Vec<_>>(), (0..80).chain(0..80).collect::<Vec<_>>());
}

/// Where packets are made there were others before, and nothing of these may show.
#[test]
fn a_pad_is_of_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wire.pcap");
    let config = SoftConfig { addr: fresh_addr(), pcap: Some(path.clone()), ..SoftConfig::default() };
    let (mut a, _b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), None);
    a.tx.set(0, &[0xEE; 64]);
    for len in [64, 61, 62, 63] {
        a.stage(0, len, Verb::Send { imm: None });
        a.flush();
    }
    let pads: Vec<_> = read_pcap(&path).iter().map(|p| p.datagram[12 + 60..12 + 64].to_vec()).collect();
    let expected = [[0xEE; 4], [0xEE, 0, 0, 0], [0xEE, 0xEE, 0, 0], [0xEE, 0xEE, 0xEE, 0]];
    assert_eq!(pads, expected);
}

#[test]
fn faults_show() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wire.pcap");
    let config = SoftConfig {
        addr: fresh_addr(),
        pcap: Some(path.clone()),
        faults: Some("corrupt=1,dup=1,seed=11".parse().unwrap()),
        ..SoftConfig::default()
    };
    let (mut a, _b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), None);
    a.stage(0, 64, Verb::Send { imm: None });
    a.flush();
    let packets = read_pcap(&path);
    assert_eq!(packets.len(), 2);
    assert_eq!(packets[0].datagram, packets[1].datagram);
    assert_eq!(icrc::verify(&packets[0].flow, &packets[0].datagram), None);
}
