//! Messages of every kind and size, whole, in order and nowhere else.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use roce_core::{
    Device, Mtu, Received, RecvCompletion, RecvKind, RecvWr, RegionId, Rkey, SendWr, Sge, UcQp, UcRecv,
    UcSend, Verb,
};

use super::{DEPTH, End, connect, flush_all, pair, queue_pair, stage_waiting};
use crate::links::{Links, Side};
use crate::memory::{Memory, content};
use crate::wait::{wait_for, wait_until};

/// Odd places, so that nothing is aligned.
const FROM: usize = 13;
const TO: u32 = 3001;

/// Runs a case for messages of every length that packets make a difference for, over the smallest and the largest
/// packets.
fn for_every_size<L: Links>(links: &L, mut case: impl FnMut(&mut Ends<L>, u64, usize)) {
    for mtu in [Some(Mtu::B256), None] {
        let (a, b) = pair(links, mtu);
        let packet = a.mtu.bytes() as usize;
        assert!(mtu.is_none_or(|mtu| mtu == a.mtu), "the path MTU is the one asked for");
        let mut ends = Ends { a, b };
        let lens =
            [0, 1, 64, packet - 1, packet, packet + 1, 3 * packet + 5, 16 * packet, 16 * packet + 1, 2, 0];
        for (number, len) in (0..).zip(lens) {
            ends.b.rx.wipe();
            case(&mut ends, number, len);
            assert_eq!(ends.b.poll(), None, "one message, one completion");
        }
    }
}

struct Ends<L: Links> {
    a: End<<L::Device as Device>::Qp>,
    b: End<<L::Device as Device>::Qp>,
}

fn len_of(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a short message")
}

fn arrived(id: u32, kind: RecvKind, bytes: &[u8], imm: Option<u32>) -> RecvCompletion {
    RecvCompletion { id, result: Ok(Received::new(kind, len_of(bytes), imm)) }
}

pub(crate) fn sends_of_every_size<L: Links>(links: &L) {
    for_every_size(links, |Ends { a, b }, number, len| {
        for (imm, spare) in [(None, 0), (Some(7), 0), (None, 100), (Some(9), 100)] {
            let bytes = content(number * 4 + u64::from(spare), len);
            b.rx.wipe();
            b.post(5, TO.into(), (len_of(&bytes) + spare).max(4));
            a.say(FROM, &bytes, Verb::Send { imm });
            assert_eq!(b.next(), arrived(5, RecvKind::Send, &bytes, imm));
            b.rx.assert_only(&format!("SEND of {len} bytes"), TO as usize, &bytes);
        }
    });
}

pub(crate) fn writes_of_every_size<L: Links>(links: &L) {
    for_every_size(links, |Ends { a, b }, number, len| {
        let bytes = content(number, len);
        b.post(5, 0, 64);
        a.say(FROM, &bytes, a.write(TO.into(), Some(77)));
        assert_eq!(b.next(), arrived(5, RecvKind::WriteWithImm, &bytes, Some(77)));
        b.rx.assert_only(&format!("WRITE of {len} bytes"), TO as usize, &bytes);
    });
}

pub(crate) fn plain_writes_of_every_size<L: Links>(links: &L) {
    for_every_size(links, |Ends { a, b }, number, len| {
        let bytes = content(number, len);
        a.say(FROM, &bytes, a.write(TO.into(), None));
        // A plain WRITE completes nothing; what follows it does.
        b.post(5, 0, 64);
        a.say(FROM, &[], a.write(0, Some(1)));
        assert_eq!(b.next(), arrived(5, RecvKind::WriteWithImm, &[], Some(1)));
        b.rx.assert_only(&format!("plain WRITE of {len} bytes"), TO as usize, &bytes);
    });
}

pub(crate) fn sends_from_the_rx_region<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, Some(Mtu::B256));
    for (number, len) in [(1, 20), (2, 600)] {
        let bytes = content(number, len);
        b.rx.wipe();
        b.post(0, TO.into(), 600);
        a.rx.set(FROM, &bytes);
        let sge = Sge { region: RegionId::Rx, offset: FROM as u64, len: len_of(&bytes) };
        a.stage(sge, Verb::Send { imm: None });
        a.flush();
        assert_eq!(b.next(), arrived(0, RecvKind::Send, &bytes, None));
        b.rx.assert_only("SEND from the RX region", TO as usize, &bytes);
    }
}

pub(crate) fn every_immediate<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, None);
    for imm in [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX] {
        b.post(0, 0, 64);
        b.post(1, 64, 64);
        a.say(0, b"send", Verb::Send { imm: Some(imm) });
        a.say(64, b"write", a.write(128, Some(imm)));
        assert_eq!(b.next(), arrived(0, RecvKind::Send, b"send", Some(imm)));
        assert_eq!(b.next(), arrived(1, RecvKind::WriteWithImm, b"write", Some(imm)));
    }
}

/// Each sent in one call, and told once whichever way the receiver asks.
pub(crate) fn one_message_at_a_time<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, None);
    for round in 0..200 {
        b.post(round, 0, 64);
        let wr =
            SendWr { sge: Sge { region: RegionId::Tx, offset: 0, len: 64 }, verb: a.write(0, Some(round)) };
        if a.send.send(&wr).expect("room in the send queue") != 0 {
            a.flush();
        }
        let mut out = [RecvCompletion::EMPTY; 2];
        let told = wait_for("a message", || match b.recv.poll_landed(&mut out).expect("a good queue pair") {
            0 => b.poll(),
            count => (count == 1).then_some(out[0]),
        });
        assert_eq!(told, arrived(round, RecvKind::WriteWithImm, &[0; 64], Some(round)));
        a.send.reap().expect("a good queue pair");
    }
}

pub(crate) fn receives_are_consumed_in_order<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, None);
    let receives = [(7, 4000), (3, 1000), (u32::MAX, 3000), (0, 5000), (3, 2000), (8, 0)];
    for (id, offset) in receives {
        b.post(id, offset, 64);
    }
    for at in 0..receives.len() {
        let bytes = content(at as u64, 64);
        let verb = if at % 2 == 0 { Verb::Send { imm: None } } else { a.write(10_000, Some(1)) };
        a.say(at * 64, &bytes, verb);
    }
    for (at, (id, offset)) in receives.into_iter().enumerate() {
        let bytes = content(at as u64, 64);
        let place = usize::try_from(offset).expect("small");
        if at % 2 == 0 {
            assert_eq!(b.next(), arrived(id, RecvKind::Send, &bytes, None));
            assert_eq!(b.rx.get(place, 64), bytes);
        } else {
            assert_eq!(b.next(), arrived(id, RecvKind::WriteWithImm, &bytes, Some(1)));
            b.rx.assert_untouched("the receive of a WRITE", place..place + 64);
        }
    }
}

/// Bytes of a message in a stream, and from one to the next.
const SHORT: usize = 48;
const STRIDE: usize = 64;

/// Where message `n` of a stream lies, in both regions.
fn place(n: u32) -> usize {
    (n % DEPTH) as usize * STRIDE
}

/// The sending side of a stream: as many messages under way as the receiver has receives.
fn send_stream<S: UcSend>(
    send: &mut S,
    tx: &Memory,
    count: u32,
    taken: &AtomicU32,
    verb: impl Fn(u32) -> Verb,
) {
    let mut sent = 0;
    wait_until("the stream to end", || {
        let allowed = count.min(taken.load(Ordering::Acquire) + DEPTH);
        while sent < allowed {
            tx.set(place(sent), &content(sent.into(), SHORT));
            let sge = Sge { region: RegionId::Tx, offset: place(sent) as u64, len: 48 };
            stage_waiting(send, &SendWr { sge, verb: verb(sent) });
            sent += 1;
        }
        flush_all(send);
        taken.load(Ordering::Acquire) == count
    });
}

fn post_stream<R: UcRecv>(recv: &mut R, n: u32) {
    let wr = RecvWr { id: n, offset: place(n) as u64, len: 64 };
    recv.post_recv(wr).expect("room for a receive");
}

/// The receiving side, which has [`DEPTH`] receives posted.
fn receive_stream<R: UcRecv>(recv: &mut R, rx: &Memory, count: u32, taken: &AtomicU32) {
    let mut batch = [RecvCompletion::EMPTY; 7];
    let mut next = 0;
    wait_until("the stream to arrive", || {
        let n = recv.poll(&mut batch).expect("a good queue pair");
        for done in &batch[..n] {
            assert_eq!(done.id, next, "in order");
            let received = done.result.expect("a message");
            assert_eq!((received.len, received.imm), (48, Some(next)));
            assert_eq!(rx.get(place(next), SHORT), content(next.into(), SHORT));
            post_stream(recv, next + DEPTH);
            next += 1;
            taken.store(next, Ordering::Release);
        }
        next == count
    });
}

fn stream<Q: UcQp>(a: End<Q>, b: End<Q>, verb: impl Fn(&End<Q>, u32) -> Verb + Sync) {
    const COUNT: u32 = 1000;
    let (mut a, mut b) = (a, b);
    let verbs: Vec<Verb> = (0..COUNT).map(|n| verb(&a, n)).collect();
    (0..DEPTH).for_each(|n| post_stream(&mut b.recv, n));
    let taken = AtomicU32::new(0);
    let (send, tx, taken) = (&mut a.send, &a.tx, &taken);
    thread::scope(|scope| {
        scope.spawn(|| receive_stream(&mut b.recv, &b.rx, COUNT, taken));
        send_stream(send, tx, COUNT, taken, |n| verbs[n as usize]);
    });
}

pub(crate) fn a_thousand_messages_in_order<L: Links>(links: &L) {
    let (a, b) = pair(links, None);
    stream(a, b, |_, n| Verb::Send { imm: Some(n) });
    let (a, b) = pair(links, None);
    stream(a, b, |a, n| a.write(place(n) as u64, Some(n)));
}

pub(crate) fn both_ways_at_once<L: Links>(links: &L) {
    const COUNT: u32 = 400;
    let (mut a, mut b) = pair(links, None);
    for end in [&mut a, &mut b] {
        (0..DEPTH).for_each(|n| post_stream(&mut end.recv, n));
    }
    let to_b = a.peer.rkey.expect("known");
    let (at_a, at_b) = (&AtomicU32::new(0), &AtomicU32::new(0));
    let write = |rkey: Rkey, n: u32| Verb::Write { addr: place(n) as u64, rkey, imm: Some(n) };
    let (End { send: a_send, recv: a_recv, rx: a_rx, tx: a_tx, .. }, End { send, recv, rx, tx, .. }) =
        (&mut a, &mut b);
    thread::scope(|scope| {
        scope.spawn(|| send_stream(a_send, a_tx, COUNT, at_b, |n| write(to_b, n)));
        scope.spawn(|| send_stream(send, tx, COUNT, at_a, |n| Verb::Send { imm: Some(n) }));
        scope.spawn(|| receive_stream(a_recv, a_rx, COUNT, at_a));
        receive_stream(recv, rx, COUNT, at_b);
    });
}

pub(crate) fn queue_pairs_of_one_device_do_not_mix<L: Links>(links: &L) {
    let (device_a, device_b) = (links.device(Side::A), links.device(Side::B));
    let mut ends: Vec<_> =
        (0..6).map(|_| connect(queue_pair(&device_a, None), queue_pair(&device_b, None))).collect();
    // Two queue pairs of the same device talk as well.
    ends.push(connect(queue_pair(&device_a, None), queue_pair(&device_a, None)));
    for round in 0..20 {
        for (at, (a, b)) in (0..).zip(&mut ends) {
            b.post(round, 64, 64);
            b.post(round, 128, 64);
            a.say(0, &content(at, 32), Verb::Send { imm: None });
            a.say(64, &content(at + 100, 33), a.write(512, Some(round)));
        }
        for (at, (_, b)) in (0..7).rev().zip(ends.iter_mut().rev()) {
            let (send, write) = (content(at, 32), content(at + 100, 33));
            assert_eq!(b.next(), arrived(round, RecvKind::Send, &send, None));
            assert_eq!(b.next(), arrived(round, RecvKind::WriteWithImm, &write, Some(round)));
            assert_eq!((b.rx.get(64, 32), b.rx.get(512, 33)), (send, write));
        }
    }
}
