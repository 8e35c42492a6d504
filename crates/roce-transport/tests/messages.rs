//! Messages through every mode, over real sockets on loopback.
#![allow(clippy::cast_possible_truncation)] // message numbers are small

mod common;

use std::thread;

use common::{monitor, pair, publish, take, wait_for, wait_until};
use roce_transport::{Error, Mode, OverrunPolicy, State};

const PAGES: u32 = 8;

fn small(b: roce_transport::ConfigBuilder) -> roce_transport::ConfigBuilder {
    b.num_pages(PAGES).page_size(64).frame_size(16)
}

#[test]
fn threads_carry_messages_round_the_ring_both_ways() {
    let (a, b) = pair(small, |b| b, |b| b);
    let (mut ends_a, mut ends_b) = (a.take_ends().expect("once"), b.take_ends().expect("once"));
    let monitors = [monitor(&a), monitor(&b)];
    let echo = thread::spawn(move || {
        for n in 0..1000u64 {
            let slot = (n % u64::from(PAGES)) as u32;
            let value = wait_for("a request", || take(&mut ends_b.rx, slot));
            assert_eq!(value, n);
            publish(&ends_b.tx, slot, value * 3);
        }
    });
    for n in 0..1000u64 {
        let slot = (n % u64::from(PAGES)) as u32;
        publish(&ends_a.tx, slot, n);
        assert_eq!(wait_for("an answer", || take(&mut ends_a.rx, slot)), n * 3);
    }
    echo.join().expect("the echo saw every request");
    let (stats_a, stats_b) = (a.stats(), b.stats());
    assert_eq!((stats_a.sent, stats_a.received, stats_b.received), (1000, 1000, 1000));
    assert_eq!((stats_b.lost, stats_b.overruns, stats_b.dropped), (0, 0, 0));
    a.close();
    b.close();
    for m in monitors {
        m.join().expect("no panic").expect("no error");
    }
}

#[test]
fn two_unified_ends_in_one_thread() {
    let (a, b) = pair(small, |b| b.mode(Mode::Unified), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    for n in 0..1000u32 {
        let slot = n % PAGES;
        caller.tx_slot(slot).copy_from(0, &n.to_le_bytes());
        caller.tx_publish(slot).expect("sent");
        let got = wait_for("a request", || service.rx_poll().expect("open"));
        assert_eq!(got, slot, "a WRITE's slot is the one that the sender named");
        assert_eq!(service.rx_slot(got).read::<4>(0), n.to_le_bytes());
        service.tx_slot(got).copy_from(0, &(n + 1).to_le_bytes());
        service.tx_publish(got).expect("sent");
        let answer = wait_for("an answer", || caller.rx_poll().expect("open"));
        assert_eq!(caller.rx_slot(answer).read::<4>(0), (n + 1).to_le_bytes());
    }
}

#[test]
fn unified_sends_slots_in_any_order() {
    let (a, b) = pair(small, |b| b.mode(Mode::Unified), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    for slot in [5, 1, 7, 0] {
        caller.tx_publish(slot).expect("sent");
        assert_eq!(wait_for("it", || service.rx_poll().expect("open")), slot);
    }
}

#[test]
fn unified_sends_as_many_bytes_as_it_is_told() {
    let (a, b) = pair(small, |b| b.mode(Mode::Unified), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    service.rx_slot(3).copy_from(0, &[7; 64]);
    caller.tx_publish_len(3, 5).expect("sent");
    wait_for("it", || service.rx_poll().expect("open"));
    assert_eq!(service.rx_slot(3).read::<6>(0), [0, 0, 0, 0, 0, 7]);
    assert!(matches!(caller.tx_publish_len(3, 65), Err(Error::Length { len: 65, page_size: 64 })));
    assert!(caller.is_open());
}

#[test]
fn unified_holds_a_request_while_foreign_code_has_its_tx_flag_set() {
    let (a, b) = pair(small, |b| b.mode(Mode::Unified), |b| b.mode(Mode::Unified));
    let flags = b.tx_ring().expect("set up");
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    // SAFETY: slot 0 of the flag array, aligned and alive as long as `flags`; nobody else writes it now.
    let set = |value: u64| unsafe { flags.flag_addr().write_volatile(value) };
    set(0xEEEE_EEEE_EEEE_EEEE);
    caller.tx_publish(0).expect("sent");
    caller.tx_publish(1).expect("sent");
    assert_eq!(wait_for("slot 1", || service.rx_poll().expect("open")), 1, "nothing waits behind slot 0");
    assert_eq!(service.rx_poll().expect("open"), None);
    caller.tx_publish(0).expect("sent");
    wait_until("the overrun of a held request", || {
        assert_eq!(service.rx_poll().expect("open"), None);
        b.stats().overruns == 1
    });
    set(0);
    assert_eq!(wait_for("slot 0", || service.rx_poll().expect("open")), 0);
    assert_eq!(service.rx_poll().expect("open"), None, "once");
}

#[test]
fn forward_sends_back_what_landed() {
    let (a, b) = pair(small, |b| b, |b| b.mode(Mode::Forward));
    let mut ends = a.take_ends().expect("once");
    let monitors = [monitor(&a), monitor(&b)];
    for n in 0..200u64 {
        let slot = (n % u64::from(PAGES)) as u32;
        publish(&ends.tx, slot, n | 0xABCD_0000_0000);
        assert_eq!(wait_for("the echo", || take(&mut ends.rx, slot)), n | 0xABCD_0000_0000);
    }
    a.close();
    b.close();
    let _ = monitors.map(|m| m.join().expect("no panic").expect("no error"));
}

#[test]
fn one_way_modes() {
    let (a, b) = pair(small, |b| b.mode(Mode::TxOnly), |b| b.mode(Mode::RxOnly));
    let (ends_a, mut ends_b) = (a.take_ends().expect("once"), b.take_ends().expect("once"));
    let _monitors = [monitor(&a), monitor(&b)];
    for n in 0..100u64 {
        let slot = (n % u64::from(PAGES)) as u32;
        publish(&ends_a.tx, slot, n);
        assert_eq!(wait_for("it", || take(&mut ends_b.rx, slot)), n);
    }
    // Nothing is sent by an rx_only end, whatever is published.
    ends_b.tx.publish(0);
    publish(&ends_a.tx, 4, 7);
    wait_for("the last", || take(&mut ends_b.rx, 4));
    assert!(!ends_b.tx.is_free(0));
    assert_eq!(b.stats().sent, 0);
}

#[test]
fn a_slot_that_is_never_published_holds_up_nothing() {
    let (a, b) = pair(small, |b| b, |b| b);
    let (ends_a, mut ends_b) = (a.take_ends().expect("once"), b.take_ends().expect("once"));
    let _monitors = [monitor(&a), monitor(&b)];
    publish(&ends_a.tx, 1, 11);
    assert_eq!(wait_for("slot 1 before slot 0", || take(&mut ends_b.rx, 1)), 11);
    publish(&ends_a.tx, 5, 55);
    assert_eq!(wait_for("slot 5", || take(&mut ends_b.rx, 5)), 55);
}

#[test]
fn markers_in_tx_flags_are_never_sent_and_harm_nothing() {
    let (a, b) = pair(small, |b| b, |b| b);
    let flags = a.tx_ring().expect("set up");
    let (ends_a, mut ends_b) = (a.take_ends().expect("once"), b.take_ends().expect("once"));
    for (slot, marker) in [(0, 0xEEEE_EEEE_EEEE_EEEE), (2, 0xDEAD_0000_0000_0005_u64), (3, 1)] {
        // SAFETY: inside the flag array of 8 slots, which `flags` keeps alive; the transport only reads it.
        unsafe { flags.flag_addr().add(slot).write_volatile(marker) };
    }
    let running = monitor(&a);
    let _other = monitor(&b);
    for slot in [1, 4, 5, 6, 7, 1, 4] {
        publish(&ends_a.tx, slot, u64::from(slot));
        assert_eq!(wait_for("it", || take(&mut ends_b.rx, slot)), u64::from(slot));
    }
    assert_eq!(a.stats().sent, 7);
    assert!(!ends_a.tx.is_free(0) && !ends_a.tx.is_free(2) && !ends_a.tx.is_free(3));
    a.close();
    running.join().expect("no panic").expect("no error");
}

/// Sends 0.. into the slots given, one after the other, from a requester whose peer consumes nothing.
fn lap(
    policy: OverrunPolicy,
) -> (std::sync::Arc<roce_transport::Transceiver>, roce_transport::RingEnds, LapPeer) {
    let (a, b) = pair(small, |b| b, |b| b.overrun(policy));
    let ends_b = b.take_ends().expect("once");
    let ends_a = a.take_ends().expect("once");
    let monitors = vec![monitor(&a), monitor(&b)];
    for n in 0..u64::from(PAGES) + 2 {
        publish(&ends_a.tx, (n % u64::from(PAGES)) as u32, n);
        let expected = n + 1;
        wait_until("its arrival", || {
            let stats = b.stats();
            stats.received >= expected || stats.overruns > 0 || b.state() == State::Failed
        });
    }
    wait_until("the overrun", || b.stats().overruns > 0);
    (b, ends_b, LapPeer { a, _ends: ends_a, monitors })
}

struct LapPeer {
    a: std::sync::Arc<roce_transport::Transceiver>,
    _ends: roce_transport::RingEnds,
    monitors: Vec<thread::JoinHandle<Result<(), Error>>>,
}

#[test]
fn a_lapped_consumer_never_sees_a_message_twice() {
    for policy in [OverrunPolicy::Wait, OverrunPolicy::Drop] {
        let (b, mut ends, peer) = lap(policy);
        let mut seen = Vec::new();
        wait_until("every message that was not overwritten", || {
            for slot in 0..PAGES {
                seen.extend(take(&mut ends.rx, slot));
            }
            let stats = b.stats();
            stats.received == u64::from(PAGES) + 2 && seen.len() as u64 + stats.overruns == stats.received
        });
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "{policy:?}: {seen:?}");
        assert!(b.stats().overruns >= 1, "{policy:?}");
        peer.a.close();
        b.close();
        peer.monitors.into_iter().for_each(|m| m.join().expect("no panic").expect("no error"));
    }
}

#[test]
fn an_overrun_stops_a_transceiver_that_was_told_to() {
    let (b, _ends, _peer) = lap(OverrunPolicy::Fail);
    wait_until("the failure", || b.state() == State::Failed);
    assert!(matches!(b.error(), Some(Error::Overrun { slot: 0 })));
}

#[test]
fn lost_messages_are_counted_and_shift_nothing() {
    let faults: roce_transport::FaultConfig = "drop=0.2,seed=5".parse().expect("valid");
    let (a, b) = pair(small, |b| b.mode(Mode::Unified).faults(faults), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    let (mut first, mut last, mut seen) = (None, 0, 0u64);
    for n in 0..500u32 {
        let slot = n % PAGES;
        caller.tx_slot(slot).copy_from(0, &n.to_le_bytes());
        caller.tx_publish(slot).expect("sent");
        // A datagram on loopback is with its receiver as soon as it is sent.
        while let Some(got) = service.rx_poll().expect("open") {
            let value = u32::from_le_bytes(service.rx_slot(got).read::<4>(0));
            assert_eq!(value % PAGES, got, "every message is in its own slot");
            first.get_or_insert(value);
            last = value;
            seen += 1;
        }
    }
    let between = u64::from(last - first.expect("not everything is lost") + 1);
    assert!(seen < between, "something was lost");
    assert_eq!(b.stats().lost, between - seen);
}

fn wire(stats: &roce_transport::Stats, name: &str) -> u64 {
    stats.wire.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} in {:?}", stats.wire)).1
}

#[test]
fn a_burst_that_laps_after_losses_delivers_nothing_twice_and_accounts_for_all() {
    const BURST: u32 = PAGES + 3;
    let mut overruns = 0;
    for seed in 0..60 {
        let faults: roce_transport::FaultConfig = format!("drop=0.3,seed={seed}").parse().expect("valid");
        let (a, b) = pair(small, |b| b.mode(Mode::Unified).faults(faults), |b| b.mode(Mode::Unified));
        let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
        for n in 0..BURST {
            caller.tx_slot(n % PAGES).copy_from(0, &n.to_le_bytes());
            caller.tx_publish(n % PAGES).expect("sent");
        }
        let mut seen = Vec::new();
        while let Some(slot) = service.rx_poll().expect("open") {
            let value = u32::from_le_bytes(service.rx_slot(slot).read::<4>(0));
            assert_eq!(value % PAGES, slot);
            assert!(!seen.contains(&value), "seed {seed}: {value} twice, after {seen:?}");
            seen.push(value);
        }
        let (sender, receiver) = (a.stats(), b.stats());
        let gone = wire(&sender, "fault_dropped") + wire(&receiver, "rx_drop_no_receive") + receiver.overruns;
        assert_eq!(seen.len() as u64 + gone, u64::from(BURST), "seed {seed}: {sender:?} {receiver:?}");
        overruns += receiver.overruns;
    }
    assert!(overruns > 0, "no burst lapped, so nothing was tested");
}

#[test]
fn a_duplicated_message_is_not_a_loss() {
    let faults: roce_transport::FaultConfig = "dup=0.3,seed=3".parse().expect("valid");
    let (a, b) = pair(small, |b| b.mode(Mode::Unified).faults(faults), |b| b.mode(Mode::Unified));
    let (mut caller, mut service) = (a.take_unified().expect("once"), b.take_unified().expect("once"));
    for n in 0..200 {
        caller.tx_publish(n % PAGES).expect("sent");
        while service.rx_poll().expect("open").is_some() {}
    }
    let stats = b.stats();
    assert!(stats.received > 200, "some came twice");
    assert_eq!(stats.lost, 0);
}

#[test]
fn what_is_published_before_close_still_leaves() {
    for _ in 0..20 {
        let (a, b) = pair(small, |b| b.mode(Mode::TxOnly), |b| b.mode(Mode::Unified));
        let ends = a.take_ends().expect("once");
        let mut service = b.take_unified().expect("once");
        let running = monitor(&a);
        wait_until("the monitor", || a.state() == State::Running);
        for slot in [1, 2, 3, 5, 6] {
            ends.tx.publish(slot);
        }
        a.close();
        running.join().expect("no panic").expect("no error");
        for _ in 0..5 {
            wait_for("each of them", || service.rx_poll().expect("open"));
        }
    }
}

#[test]
fn sixteen_transceivers_on_one_address() {
    let addr = common::unused_addr();
    let peers: Vec<_> = (0..16)
        .map(|_| {
            let service = roce_transport::Transceiver::new(
                small(common::soft(addr)).mode(Mode::Unified).build().expect("valid"),
            );
            let caller = roce_transport::Transceiver::new(
                small(common::soft(common::unused_addr())).mode(Mode::Unified).build().expect("valid"),
            );
            let (s, c) = (service.setup().expect("set-up"), caller.setup().expect("set-up"));
            service.connect(&common::peer_of(c)).expect("connect");
            caller.connect(&common::peer_of(s)).expect("connect");
            (service, caller)
        })
        .collect();
    thread::scope(|scope| {
        for (n, (service, caller)) in peers.iter().enumerate() {
            scope.spawn(move || {
                let (mut service, mut caller) =
                    (service.take_unified().expect("once"), caller.take_unified().expect("once"));
                for round in 0..50u32 {
                    let value = (n as u32) << 16 | round;
                    caller.tx_slot(0).copy_from(0, &value.to_le_bytes());
                    caller.tx_publish(0).expect("sent");
                    let slot = wait_for("a request", || service.rx_poll().expect("open"));
                    assert_eq!(service.rx_slot(slot).read::<4>(0), value.to_le_bytes());
                }
            });
        }
    });
}
