//! Queue pairs and their halves, given up at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use roce_core::{Device, RecvCompletion, RecvWr, RegionId, SendWr, Sge, UcQp, UcRecv, Verb};

use super::{DEPTH, End, attr, flush_all, pair, stage_waiting};
use crate::links::{Links, Side};
use crate::memory::{Memory, content};
use crate::wait::wait_until;

const LEN: usize = 40;
const SEND: Verb = Verb::Send { imm: None };

/// Asserts that no queue pair holds the regions any more.
fn assert_free(regions: [&Memory; 2]) {
    regions.iter().for_each(|memory| memory.assert_free("a queue pair that is gone"));
}

/// Asserts that new queue pairs on the link get their own messages and nothing else.
fn assert_link_good<L: Links>(links: &L) {
    let (mut a, mut b) = pair(links, None);
    let bytes = content(77, LEN);
    for (from, to) in [(true, 1), (false, 2)] {
        let (from, end) = if from { (&mut a, &mut b) } else { (&mut b, &mut a) };
        end.post(to, 64, 64);
        from.say(0, &bytes, Verb::Send { imm: Some(to) });
        assert_eq!(end.next().result.expect("a message").imm, Some(to));
        end.rx.assert_only("a new queue pair", 64, &bytes);
        assert_eq!(end.poll(), None);
    }
}

pub(crate) fn dropped_without_connect<L: Links>(links: &L) {
    let device = links.device(Side::A);
    let (rx, tx) = (Memory::new(4096), Memory::new(4096));
    for _ in 0..20 {
        let mut qp = device.create_qp(&attr(&rx, &tx, None)).expect("a queue pair");
        (0..DEPTH).for_each(|id| qp.post_recv(RecvWr { id, offset: 0, len: 64 }).expect("room"));
        drop(qp);
        assert_free([&rx, &tx]);
    }
    drop(device);
    assert_link_good(links);
}

pub(crate) fn dropped_with_messages_under_way<L: Links>(links: &L) {
    for flushed in [true, false] {
        for _ in 0..10 {
            let (mut a, mut b) = pair(links, None);
            for n in 0..DEPTH {
                b.post(n, 0, 64);
                a.stage(Sge { region: RegionId::Tx, offset: 0, len: 40 }, Verb::Send { imm: Some(1000 + n) });
            }
            if flushed {
                a.flush();
            }
            for End { send, recv, rx, tx, .. } in [a, b] {
                drop((send, recv));
                assert_free([&rx, &tx]);
            }
        }
        assert_link_good(links);
    }
}

/// Runs `work` again and again on another thread while `then` runs on this one.
fn while_running(mut work: impl FnMut() + Send, then: impl FnOnce()) {
    struct SetOnDrop<'a>(&'a AtomicBool);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(stop);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                work();
                thread::yield_now();
            }
        });
        then();
    });
}

/// Our receiving half stays when the sending half is gone, and goes while the peer sends.
pub(crate) fn the_sending_half_goes_first<L: Links>(links: &L) {
    let (a, mut b) = pair(links, None);
    let End { send, mut recv, rx, tx, .. } = a;
    recv.post_recv(RecvWr { id: 1, offset: 0, len: 64 }).expect("room");
    let bytes = content(1, LEN);
    drop(send);
    while_running(
        || b.say(0, &bytes, SEND),
        || {
            let mut out = [RecvCompletion::EMPTY];
            wait_until("a message", || recv.poll(&mut out).expect("a good queue pair") == 1);
            drop(recv);
        },
    );
    assert_free([&rx, &tx]);
    b.say(64, &content(2, LEN), SEND);
    assert_link_good(links);
    rx.assert_only("a queue pair that is gone", 0, &bytes);
}

/// Our sending half goes on, on its own thread, when the receiving half is gone.
pub(crate) fn the_receiving_half_goes_first<L: Links>(links: &L) {
    let (a, mut b) = pair(links, None);
    let End { mut send, recv, rx, tx, .. } = a;
    (0..DEPTH).for_each(|id| b.post(id, 0, 64));
    let bytes = content(1, LEN);
    tx.set(0, &bytes);
    let wr = SendWr { sge: Sge { region: RegionId::Tx, offset: 0, len: 40 }, verb: SEND };
    while_running(
        || {
            stage_waiting(&mut send, &wr);
            flush_all(&mut send);
        },
        || {
            b.next();
            drop(recv);
            for _ in 0..2 * DEPTH {
                let id = b.next().id;
                b.post(id, 0, 64);
            }
        },
    );
    b.rx.assert_only("the peer", 0, &bytes);
    drop(send);
    assert_free([&rx, &tx]);
    assert_link_good(links);
}
