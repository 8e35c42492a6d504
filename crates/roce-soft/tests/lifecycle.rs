//! Sockets, queue pairs and threads that come and go.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{End, connect, fresh_addr, open, pair, pattern, qp_on, wait_for};
use roce_core::{RecvCompletion, UcRecv, UcSend, Verb};
use roce_soft::{SoftConfig, SoftDevice, SoftError};

/// Whether the process has a socket at the address.
fn is_bound(addr: std::net::Ipv4Addr) -> bool {
    UdpSocket::bind((addr, 4791)).is_err()
}

#[test]
fn the_socket_lives_as_long_as_anything_on_it() {
    let addr = fresh_addr();
    let device = open(addr);
    let (a, b) = connect(&device, &open(fresh_addr()), None);
    drop(device);
    assert!(is_bound(addr));
    let End { send, recv, .. } = a;
    drop(recv);
    assert!(is_bound(addr));
    drop(send);
    assert!(!is_bound(addr));
    drop(b);

    let unconnected = qp_on(&open(addr), None);
    assert!(is_bound(addr));
    drop(unconnected);
    assert!(!is_bound(addr));
}

#[test]
fn what_found_no_room_stays_counted() {
    let (a, b) = pair(None);
    let sender = UdpSocket::bind((fresh_addr(), 0)).unwrap();
    let mut sent = 0;
    while a.stats.socket_overflow() < 5 {
        sender.send_to(&[0; 4096], (a.local.ip, 4791)).unwrap();
        sent += 1;
        assert!(sent < 100_000, "there is not so much room");
    }
    let End { send, recv, stats, .. } = a;
    let counted = stats.socket_overflow();
    drop((send, recv, b));
    assert_eq!(stats.socket_overflow(), counted);
}

#[test]
fn halves_may_go_in_any_order_and_the_other_one_works_on() {
    let (mut a, b) = pair(None);
    let End { send, mut recv, rx, stats, .. } = b;
    drop(send);
    recv.post_recv(roce_core::RecvWr { id: 1, offset: 0, len: 8 }).unwrap();
    a.stage(0, 8, Verb::Send { imm: None });
    a.flush();
    let mut out = [RecvCompletion::EMPTY];
    wait_for("the message", || (recv.poll(&mut out).unwrap() == 1).then_some(()));
    drop(recv);
    drop(rx);
    // Nobody is there any more; the sender cannot know.
    a.stage(0, 8, Verb::Send { imm: None });
    a.flush();
    assert_eq!(stats.socket_overflow(), 0);

    let (a, mut b) = pair(None);
    let End { mut send, recv, .. } = a;
    drop(recv);
    b.post(2, 0, 8);
    let sge = roce_core::Sge { region: roce_core::RegionId::Tx, offset: 0, len: 8 };
    send.stage(&roce_core::SendWr { sge, verb: Verb::Send { imm: None } }).unwrap();
    send.flush().unwrap();
    assert_eq!(b.next().id, 2);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .filter(|link| link.to_string_lossy().contains("socket"))
        .count()
}

#[test]
fn two_hundred_lives_leak_nothing() {
    // Other tests of this file open sockets at the same time, so only many more would be a leak.
    let before = open_files();
    let addrs = (fresh_addr(), fresh_addr());
    for i in 0..200 {
        let (mut a, mut b) = connect(&open(addrs.0), &open(addrs.1), None);
        b.post(i, 0, 8);
        a.stage(0, 8, Verb::Send { imm: Some(i) });
        a.flush();
        assert_eq!(b.next().id, i);
        if i % 2 == 0 {
            drop(a);
        }
    }
    assert!(open_files() < before + 100, "{} sockets before, {} after", before, open_files());
    assert!(!is_bound(addrs.0) && !is_bound(addrs.1));
}

#[test]
fn threads_that_open_and_close_an_address_never_collide() {
    let addr = fresh_addr();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    drop(qp_on(&open(addr), None));
                }
            });
        }
    });
    assert!(!is_bound(addr));
}

#[test]
fn queue_pairs_come_and_go_while_packets_arrive() {
    let (addr_a, addr_b) = (fresh_addr(), fresh_addr());
    let (one, two) = (open(addr_a), open(addr_b));
    let (mut a, mut b) = connect(&one, &two, None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                b.post(i, 0, 64);
                a.stage(0, 64, Verb::Send { imm: Some(i) });
                a.flush();
                assert_eq!(b.next().result.unwrap().imm, Some(i));
                i += 1;
            }
        });
        for round in 0..100 {
            let (mut c, mut d) = connect(&one, &two, None);
            d.post(round, 0, 64);
            for _ in 0..5 {
                c.stage(0, 64, Verb::Send { imm: Some(round) });
            }
            c.flush();
            if round % 2 == 0 {
                assert_eq!(d.next().result.unwrap().imm, Some(round));
            }
            // Packets are still on their way, to memory that goes now.
            drop(d);
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Each thread polls its own queue pair, and whoever is at the socket serves all of them.
#[test]
fn queue_pairs_of_one_socket_are_polled_from_many_threads() {
    const THREADS: u32 = 6;
    const MESSAGES: u32 = 500;
    let (one, two) = (open(fresh_addr()), open(fresh_addr()));
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (mut a, mut b) = connect(&one, &two, None);
            scope.spawn(move || {
                for i in 0..MESSAGES {
                    let number = t << 16 | i;
                    a.tx.set(0, &pattern(number, 300));
                    b.post(number, 100, 300);
                    a.stage(0, 300, Verb::Send { imm: Some(number) });
                    a.flush();
                    let got = b.next();
                    assert_eq!((got.id, got.result.unwrap().imm), (number, Some(number)));
                    assert_eq!(b.rx.get(100, 300), pattern(number, 300));
                    a.post(number, 0, 0);
                    b.tx.set(0, &number.to_be_bytes());
                    b.stage(0, 4, b.write(8, Some(number)));
                    b.flush();
                    assert_eq!(a.next().result.unwrap().imm, Some(number));
                    assert_eq!(a.rx.get(8, 4), number.to_be_bytes());
                }
                assert_eq!(a.stats.lost_packets() + b.stats.lost_packets(), 0);
            });
        }
    });
}

/// The two halves of one queue pair in two threads, with a message's bytes read as soon as it completes.
#[test]
fn halves_work_in_two_threads() {
    const MESSAGES: u32 = 2000;
    let (mut a, b) = pair(None);
    let End { mut send, mut recv, rx, .. } = b;
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let seen = Arc::clone(&done);
        scope.spawn(move || {
            let mut out = [RecvCompletion::EMPTY; 8];
            for slot in 0..64 {
                recv.post_recv(roce_core::RecvWr { id: slot, offset: u64::from(slot) * 64, len: 64 })
                    .unwrap();
            }
            let mut next = 0;
            wait_for("all messages", || {
                let n = recv.poll(&mut out).unwrap();
                for got in &out[..n] {
                    assert_eq!(got.result.unwrap().imm, Some(next));
                    assert_eq!(rx.get(got.id as usize * 64, 64), pattern(next, 64));
                    recv.post_recv(roce_core::RecvWr { id: got.id, offset: u64::from(got.id) * 64, len: 64 })
                        .unwrap();
                    next += 1;
                }
                (next == MESSAGES).then_some(())
            });
            seen.store(true, Ordering::Relaxed);
        });
        scope.spawn(move || {
            // The other half sends all the while, to a queue pair without receives.
            let sge = roce_core::Sge { region: roce_core::RegionId::Tx, offset: 0, len: 8 };
            while !done.load(Ordering::Relaxed) {
                send.stage(&roce_core::SendWr { sge, verb: Verb::Send { imm: None } }).unwrap();
                send.flush().unwrap();
                std::thread::yield_now();
            }
        });
        for i in 0..MESSAGES {
            a.tx.set(0, &pattern(i, 64));
            a.stage(0, 64, Verb::Send { imm: Some(i) });
            a.flush();
            if i % 16 == 15 {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn captures_of_a_shared_socket_go_to_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let addr = fresh_addr();
    let with = |name: &str| {
        SoftDevice::open(SoftConfig { addr, pcap: Some(dir.path().join(name)), ..SoftConfig::default() })
    };
    let first = with("one.pcap").unwrap();
    let again = with("one.pcap").unwrap();
    assert!(matches!(with("two.pcap"), Err(SoftError::PcapInUse { .. })));
    drop((first, again));
    assert!(with("two.pcap").is_ok());
    assert!(matches!(with("no/such/folder.pcap"), Err(SoftError::Pcap { .. })));
}
