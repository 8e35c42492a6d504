//! What must be refused, dropped or held back, and leave the link good.

use std::net::Ipv4Addr;

use roce_core::{
    Device, Mtu, PeerEndpoint, PostError, QpAttr, Received, RecvCompletion, RecvKind, RecvWr, RegionId, Rkey,
    SendWr, Sge, UcQp, UcRecv, UcSend, Verb,
};

use super::{DEPTH, End, QpOf, REGION, alone, attr, flush_all, pair, queue_pair, stage_waiting};
use crate::links::{BadWrite, Links, OverlongSend, Side};
use crate::memory::{Memory, content};
use crate::wait::wait_until;

const LEN: usize = 40;

/// Sends a message that must arrive, and with it everything before it, where order is kept.
fn assert_good<Q: UcQp>(a: &mut End<Q>, b: &mut End<Q>, what: &str) {
    let bytes = content(4242, LEN);
    b.post(4242, 4096, 64);
    a.say(4096, &bytes, Verb::Send { imm: Some(4242) });
    assert_eq!(b.next(), good(), "after {what}");
    assert_eq!(b.rx.get(4096, LEN), bytes, "after {what}");
}

pub(crate) fn without_a_receive_a_message_is_gone<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, Some(Mtu::B256));
    let long = content(1, 700);
    for (at, bytes) in [&long[..LEN], &long[..], &[]].into_iter().enumerate() {
        a.say(at * 1024, bytes, Verb::Send { imm: None });
        if bytes.len() <= 256 || links.survives_torn_writes() {
            a.say(at * 1024, bytes, a.write(8192, Some(1)));
        }
    }
    // A plain WRITE needs no receive. When it is there, all before it were dropped.
    a.say(16384, b"all gone", a.write(16384, None));
    wait_until("the plain WRITE", || {
        assert_eq!(b.poll(), None, "no receive, no completion");
        b.rx.get(16384, 8) == b"all gone"
    });
    assert_good(&mut a, &mut b, "messages without a receive");
    assert_eq!(b.poll(), None);
}

/// A WRITE that must have no effect at all.
#[derive(Clone, Copy)]
struct Bad {
    addr: u64,
    key: Rkey,
    len: usize,
}

/// Sends each with and without an immediate, one packet and several.
fn assert_writes_nothing<L: Links>(links: &L, bad: impl Fn(&End<QpOf<L>>, usize) -> Vec<Bad>) {
    let (mut a, mut b) = pair(links, Some(Mtu::B256));
    let all: Vec<Bad> = [8, 700].into_iter().flat_map(|len| bad(&a, len)).collect();
    for bad in all {
        for imm in [None, Some(1)] {
            let what = format!("WRITE of {} bytes to {:#x} under {}, {imm:?}", bad.len, bad.addr, bad.key);
            b.rx.wipe();
            b.post(4242, 4096, 64);
            a.say(0, &content(9, bad.len), Verb::Write { addr: bad.addr, rkey: bad.key, imm });
            // The receive that the bad one did not consume takes this one.
            let bytes = content(4242, LEN);
            a.say(4096, &bytes, Verb::Send { imm: Some(4242) });
            match links.bad_write() {
                BadWrite::Dropped => {
                    assert_eq!(b.next(), good(), "after {what}");
                    b.rx.assert_only(&what, 4096, &bytes);
                }
                BadWrite::MayFailReceiver => {
                    wait_until("the next message, or the receiver to fail", || {
                        let seen = outcome(&mut b);
                        assert!(
                            seen.is_none_or(|seen| seen.is_none_or(|done| done == good())),
                            "{what}: {seen:?}"
                        );
                        seen.is_some()
                    });
                    b.rx.assert_untouched(&what, 0..4096);
                    b.rx.assert_untouched(&what, 4096 + LEN..REGION as usize);
                    (a, b) = pair(links, Some(Mtu::B256));
                }
            }
        }
    }
}

/// What the message behind a bad one completes.
fn good() -> RecvCompletion {
    RecvCompletion { id: 4242, result: Ok(Received::new(RecvKind::Send, 40, Some(4242))) }
}

/// The next completion, in `Some(None)` a failure of the queue pair.
fn outcome<Q: UcQp>(end: &mut End<Q>) -> Option<Option<RecvCompletion>> {
    let mut out = [RecvCompletion::EMPTY];
    match end.recv.poll(&mut out) {
        Ok(0) => None,
        Ok(_) => Some(Some(alone(out[0])).filter(|done| done.result.is_ok())),
        Err(_) => Some(None),
    }
}

/// Whether the receiver's queue pair is in error; a message must not arrive meanwhile.
fn fails<Q: UcQp>(end: &mut End<Q>) -> bool {
    let seen = outcome(end);
    assert!(!matches!(seen, Some(Some(_))), "a message arrived: {seen:?}");
    seen.is_some()
}

pub(crate) fn a_wrong_key_writes_nothing<L: Links>(links: &L) {
    assert_writes_nothing(links, |a, len| {
        let right = a.peer.rkey.expect("known").get();
        let wrong = [right ^ 1, right ^ 0x100, right ^ 0x8000_0000, 0, u32::MAX];
        let wrong = wrong.into_iter().filter(|&key| key != right);
        wrong.map(|key| Bad { addr: 64, key: Rkey::new(key), len }).collect()
    });
}

pub(crate) fn out_of_bounds_writes_nothing<L: Links>(links: &L) {
    assert_writes_nothing(links, |a, len| {
        let (key, bytes, region) = (a.peer.rkey.expect("known"), len as u64, u64::from(REGION));
        let addrs = [
            region - bytes + 1,
            region - 1,
            region,
            region + 4096,
            1 << 32,
            1 << 63,
            u64::MAX,
            u64::MAX - bytes + 1,
            u64::MAX - bytes + 2,
        ];
        addrs.map(|addr| Bad { addr, key, len }).to_vec()
    });
}

pub(crate) fn an_overlong_send_spares_its_neighbours<L: Links>(links: &L) {
    for (room, len) in [(16, 17), (16, 256), (300, 301), (300, 700)] {
        let (mut a, mut b) = pair(links, Some(Mtu::B256));
        let what = format!("a SEND of {len} bytes into a receive of {room}");
        b.post(3, 1000, room);
        a.say(0, &content(5, len), Verb::Send { imm: None });
        match links.overlong_send() {
            OverlongSend::Dropped => {
                let bytes = content(6, room as usize);
                a.say(4096, &bytes, Verb::Send { imm: None });
                let received = Received::new(RecvKind::Send, room, None);
                assert_eq!(b.next(), RecvCompletion { id: 3, result: Ok(received) }, "after {what}");
                b.rx.assert_only(&what, 1000, &bytes);
            }
            OverlongSend::FailsReceiver => {
                wait_until("the receiver to fail", || fails(&mut b));
                b.rx.assert_untouched(&what, 0..1000);
                b.rx.assert_untouched(&what, 1000 + room as usize..REGION as usize);
            }
        }
    }
}

pub(crate) fn a_full_send_queue_is_back_pressure<L: Links>(links: &L) {
    /// A queue may be somewhat deeper than asked for, not endless.
    const MOST: u32 = 16 * DEPTH;
    let (mut a, mut b) = pair(links, None);
    (0..DEPTH).for_each(|n| b.post(n, u64::from(n) * 64, 64));
    let wr = |n: u32| SendWr {
        sge: Sge { region: RegionId::Tx, offset: 0, len: 40 },
        verb: Verb::Send { imm: Some(n) },
    };
    a.tx.set(0, &content(3, LEN));
    let mut staged = 0;
    let full = loop {
        match a.send.stage(&wr(staged)) {
            Ok(()) => staged += 1,
            Err(e) => break e,
        }
        assert!(staged < MOST, "{staged} messages staged and none sent");
    };
    assert!(matches!(full, PostError::QueueFull), "{full}");
    assert!(staged >= DEPTH, "only {staged} messages fit a queue of {DEPTH}");
    assert_eq!(b.poll(), None, "nothing leaves before flush");
    // All that was staged leaves, and then there is room again.
    let mut next = 0;
    let mut take = |b: &mut End<_>, until: u32| {
        wait_until("the messages", || {
            while let Some(done) = b.poll() {
                let received = done.result.expect("a message");
                assert_eq!(received.imm, Some(next), "in order, none missing");
                b.post(done.id, u64::from(done.id) * 64, 64);
                next += 1;
            }
            next == until
        });
    };
    flush_all(&mut a.send);
    if staged <= DEPTH {
        take(&mut b, staged);
        for n in staged..staged + DEPTH {
            stage_waiting(&mut a.send, &wr(n));
        }
        flush_all(&mut a.send);
        take(&mut b, staged + DEPTH);
    }
}

pub(crate) fn a_full_receive_queue_says_so<L: Links>(links: &L) {
    const MOST: u32 = 1 << 16;
    let (mut a, mut b) = pair(links, None);
    let mut posted = 0;
    let full = loop {
        match b.recv.post_recv(RecvWr { id: posted, offset: 0, len: 64 }) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
        assert!(posted < MOST, "{posted} receives posted");
    };
    assert!(matches!(full, PostError::QueueFull), "{full}");
    assert!(posted >= DEPTH, "only {posted} receives fit a queue of {DEPTH}");
    for n in 0..3 {
        a.say(64, &content(n.into(), LEN), Verb::Send { imm: None });
        assert_eq!(b.next().id, n);
        b.post(0, 0, 64);
    }
}

pub(crate) fn bytes_outside_the_region_are_refused<L: Links>(links: &L) {
    let region = u64::from(REGION);
    let outside = [(region - 3, 4), (region, 1), (0, REGION + 1), (1 << 40, 1), (u64::MAX, 2), (u64::MAX, 1)];
    let is_refused = |result: Result<(), PostError>| matches!(result, Err(PostError::OutOfRange { .. }));

    let (mut a, mut b) = (queue_pair(&links.device(Side::A), None), queue_pair(&links.device(Side::B), None));
    for (offset, len) in outside {
        for qp in [&mut a.qp, &mut b.qp] {
            assert!(is_refused(qp.post_recv(RecvWr { id: 0, offset, len })), "{len} at {offset}");
        }
    }
    let (mut a, mut b) = super::connect(a, b);
    for (offset, len) in outside {
        assert!(is_refused(b.recv.post_recv(RecvWr { id: 0, offset, len })), "{len} at {offset}");
        for region in [RegionId::Rx, RegionId::Tx] {
            for verb in [Verb::Send { imm: None }, a.write(0, Some(1))] {
                let wr = SendWr { sge: Sge { region, offset, len }, verb };
                assert!(is_refused(a.send.stage(&wr)), "{len} at {offset} of {region:?}");
            }
        }
    }
    flush_all(&mut a.send);
    assert_good(&mut a, &mut b, "refused requests");
    assert_eq!(b.poll(), None);
}

pub(crate) fn a_refused_connect_gives_the_queue_pair_back<L: Links>(links: &L) {
    let (mut a, b) = (queue_pair(&links.device(Side::A), None), queue_pair(&links.device(Side::B), None));
    a.qp.post_recv(RecvWr { id: 11, offset: 64, len: 64 }).expect("room");
    let (qpn, rkey) = (a.qp.qpn(), a.qp.rkey());
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::BROADCAST] {
        match a.qp.connect(&PeerEndpoint { ip, ..b.endpoint() }) {
            Ok(_) => panic!("connected to {ip}"),
            Err(refused) => {
                assert!(!refused.error.to_string().is_empty());
                a.qp = refused.qp;
            }
        }
        assert_eq!((a.qp.qpn(), a.qp.rkey()), (qpn, rkey), "the same queue pair");
    }
    let (mut a, mut b) = super::connect(a, b);
    let bytes = content(1, LEN);
    b.say(0, &bytes, Verb::Send { imm: None });
    assert_eq!(a.next().id, 11, "posted before the refusal");
    assert_eq!(a.rx.get(64, LEN), bytes);
    assert_good(&mut a, &mut b, "refused connects");
}

pub(crate) fn impossible_queue_pairs_are_refused<L: Links>(links: &L) {
    let device = links.device(Side::A);
    let (rx, tx) = (Memory::new(REGION), Memory::new(REGION));
    let largest = queue_pair(&device, None).qp.path_mtu();
    let good = attr(&rx, &tx, None);
    let mut bad = vec![
        QpAttr { send_depth: u32::MAX, ..good.clone() },
        QpAttr { recv_depth: u32::MAX, ..good.clone() },
    ];
    let too_large = Mtu::ALL.into_iter().filter(|&mtu| mtu > largest);
    bad.extend(too_large.map(|mtu| QpAttr { mtu: Some(mtu), ..good.clone() }));
    for attr in &bad {
        let refused = device.create_qp(attr).map(|_| ());
        assert!(refused.is_err(), "{attr:?}");
    }
    drop((bad, good));
    [&rx, &tx].iter().for_each(|memory| memory.assert_free("refused queue pairs"));
    drop(device.create_qp(&attr(&rx, &tx, None)).expect("a good queue pair"));
}
