//! Faults on purpose, over real sockets.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use common::{End, connect, fresh_addr, open, pattern, wait_for};
use roce_core::{UcSend, Verb, WireStats};
use roce_soft::{DropReason, SoftConfig, SoftDevice};

const COUNT: u32 = 2000;
const LEN: usize = 64;

struct Run {
    a: End,
    b: End,
    /// The numbers of the messages, as they arrived.
    arrived: Vec<u32>,
    /// Slots to receive into.
    free: Vec<u32>,
}

impl Run {
    /// Sends numbered messages one by one, until everything that leaves has arrived.
    fn of(faults: &str) -> Self {
        let faults = Some(faults.parse().unwrap());
        let config = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
        let (a, b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), None);
        let mut run = Self { a, b, arrived: Vec::new(), free: (0..32).collect() };
        for i in 0..COUNT {
            run.a.tx.set(0, &pattern(i, LEN));
            run.a.stage(0, LEN as u32, Verb::Send { imm: Some(i) });
            run.a.flush();
            run.receive();
        }
        wait_for("all packets to leave and to arrive", || {
            run.a.send.reap().unwrap();
            run.receive();
            let leaving = u64::from(COUNT) + run.a_counts("fault_duplicated") - run.a_counts("fault_dropped");
            let came = count(&run.b, "rx_packets") + run.b.stats.dropped(DropReason::BadIcrc);
            (run.a_counts("tx_packets") == leaving && came == leaving).then_some(())
        });
        run.receive();
        run
    }

    fn receive(&mut self) {
        loop {
            for slot in self.free.drain(..) {
                self.b.post(slot, u64::from(slot) * LEN as u64, LEN as u32);
            }
            let Some(got) = self.b.poll() else { return };
            let imm = got.result.unwrap().imm.unwrap();
            let bytes = self.b.rx.get(got.id as usize * LEN, LEN);
            assert_eq!(bytes, pattern(imm, LEN), "message {imm} is not whole");
            self.arrived.push(imm);
            self.free.push(got.id);
        }
    }

    fn a_counts(&self, name: &str) -> u64 {
        count(&self.a, name)
    }

    fn sorted(&self) -> Vec<u32> {
        let mut sorted = self.arrived.clone();
        sorted.sort_unstable();
        sorted
    }
}

fn count(end: &End, name: &str) -> u64 {
    end.stats.snapshot().into_iter().find(|(n, _)| *n == name).unwrap().1
}

fn all() -> Vec<u32> {
    (0..COUNT).collect()
}

#[test]
fn none() {
    assert_eq!(Run::of("seed=1").arrived, all());
}

#[test]
fn dropped() {
    let run = Run::of("drop=0.1,seed=1");
    let dropped = run.a_counts("fault_dropped");
    assert!((100..400).contains(&dropped), "{dropped}");
    assert_eq!(run.arrived.len() as u64, u64::from(COUNT) - dropped);
    assert!(run.arrived.is_sorted_by(|a, b| a < b));
    let before = u64::from(run.arrived[0]);
    let after = u64::from(COUNT - 1 - run.arrived.last().unwrap());
    assert_eq!(run.b.stats.lost_packets(), dropped - before - after);
}

#[test]
fn doubled() {
    let run = Run::of("dup=0.1,seed=2");
    let doubled = run.a_counts("fault_duplicated");
    assert!((100..400).contains(&doubled), "{doubled}");
    assert_eq!(run.arrived.len() as u64, u64::from(COUNT) + doubled);
    assert_eq!(run.b.stats.late_packets(), doubled);
    let mut once = run.sorted();
    once.dedup();
    assert_eq!(once, all());
}

#[test]
fn overtaken() {
    let run = Run::of("reorder=0.1,seed=3");
    let reordered = run.a_counts("fault_reordered");
    assert!((100..400).contains(&reordered), "{reordered}");
    assert_ne!(run.arrived, all());
    assert_eq!(run.sorted(), all());
    assert_eq!(run.b.stats.lost_packets(), run.b.stats.late_packets());
}

#[test]
fn late() {
    for delay in ["delay=0.1:50us,seed=4", "delay=0.1:7p,seed=5"] {
        let run = Run::of(delay);
        let delayed = run.a_counts("fault_delayed");
        assert!((100..400).contains(&delayed), "{delayed}");
        assert_eq!(run.sorted(), all());
    }
}

#[test]
fn damaged() {
    let run = Run::of("corrupt=0.1,seed=6");
    let corrupted = run.a_counts("fault_corrupted");
    assert!((100..400).contains(&corrupted), "{corrupted}");
    // A few bits lie in the byte that routers may change.
    let seen = run.b.stats.dropped(DropReason::BadIcrc);
    assert!(seen <= corrupted && seen > corrupted * 8 / 10, "{seen} of {corrupted}");
    assert_eq!(run.arrived.len() as u64, u64::from(COUNT) - seen);
}

#[test]
fn all_of_them() {
    let run = Run::of("drop=0.05,dup=0.05,reorder=0.05,delay=0.05:20us,corrupt=0.05,seed=7");
    let mut once = run.sorted();
    once.dedup();
    assert!(once.len() > COUNT as usize * 8 / 10);
}

#[test]
fn the_last_packet_leaves_when_its_sender_only_polls() {
    let faults = Some("reorder=1".parse().unwrap());
    let config = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
    let (mut a, mut b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), None);
    b.post(0, 0, 8);
    a.stage(0, 8, Verb::Send { imm: None });
    a.send.flush().unwrap();
    wait_for("the message", || {
        assert_eq!(a.poll(), None);
        b.poll()
    });
}

#[test]
fn what_is_held_leaves_with_the_end_of_its_sender() {
    let faults = Some("delay=1:60000ms".parse().unwrap());
    let config = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
    let (mut a, mut b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), None);
    b.post(0, 0, 8);
    a.stage(0, 8, Verb::Send { imm: None });
    a.flush();
    assert_eq!(b.poll(), None);
    drop(a);
    assert_eq!(b.next().id, 0);
}

#[test]
fn messages_of_many_packets_wait_for_room() {
    let faults = Some("delay=0.5:2ms,seed=8".parse().unwrap());
    let config = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
    let mtu = Some(roce_core::Mtu::B256);
    let (mut a, mut b) = connect(&SoftDevice::open(config).unwrap(), &open(fresh_addr()), mtu);
    for _ in 0..2 {
        a.stage(0, 100 * 256, Verb::Send { imm: None });
    }
    assert!(a.send.flush().unwrap() > 0, "64 packets are held at most");
    wait_for("all packets to leave", || (a.send.flush().unwrap() == 0).then_some(()));
    wait_for("all packets to arrive", || {
        a.send.reap().unwrap();
        b.poll();
        (count(&b, "rx_packets") == 200).then_some(())
    });
}
