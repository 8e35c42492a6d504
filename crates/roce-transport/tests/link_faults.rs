//! Faults that no healthy link shows: failing completions, full queues, refused connects. The link here is
//! scripted, since neither a UDP socket nor a NIC fails on demand.

mod common;
#[path = "common/scripted.rs"]
mod scripted;

use std::sync::{Arc, Mutex};
use std::thread;

use common::{publish, wait_until};
use roce_core::{CompletionError, RecvCompletion, Rkey, Verb};
use roce_transport::{Config, Error, ImmediateFormat, MemoryLock, Mode, State, Transceiver, TxMode};
use scripted::{Link, PEER, Script, send, write};

const FLUSH_ERROR: CompletionError =
    CompletionError { what: "send", reason: "work request flushed", status: 5, vendor: 0xF9 };

fn config(mode: Mode) -> roce_transport::ConfigBuilder {
    Config::builder("scripted")
        .num_pages(4)
        .page_size(64)
        .frame_size(16)
        .mode(mode)
        .memory_lock(MemoryLock::Off)
}

fn transceiver(config: Config, script: Script) -> (Arc<Transceiver<Link>>, Link) {
    let link = Link(Arc::new(Mutex::new(script)));
    let opened = link.clone();
    (Arc::new(Transceiver::with_device(config, move |_| Ok(opened.clone()))), link)
}

fn connected(config: Config, script: Script) -> (Arc<Transceiver<Link>>, Link) {
    let (t, link) = transceiver(config, script);
    t.setup().expect("set-up");
    t.connect(&PEER).expect("connect");
    (t, link)
}

fn build(builder: roce_transport::ConfigBuilder) -> Config {
    builder.build().expect("valid")
}

#[test]
fn a_failed_setup_leaves_nothing_and_may_be_tried_again() {
    let (t, link) =
        transceiver(build(config(Mode::Threads)), Script { refuse_opening: 1, ..Script::default() });
    let error = t.setup().expect_err("refused once");
    assert_eq!(error.to_string(), "scripted: the script says no");
    assert_eq!(t.state(), State::Created);
    assert_eq!(Arc::strong_count(&link.0), 2, "the link and its opener");
    t.setup().expect("the second time");
    assert_eq!(link.script(|s| s.receives.len()), 4);
}

#[test]
fn a_refused_connect_keeps_the_set_up() {
    let (t, link) =
        transceiver(build(config(Mode::Threads)), Script { refuse_connect: 2, ..Script::default() });
    let end = t.setup().expect("set-up");
    for _ in 0..2 {
        assert!(matches!(t.connect(&PEER), Err(Error::Connect { .. })));
        assert_eq!((t.state(), t.endpoint()), (State::SetUp, Some(end)));
    }
    t.connect(&PEER).expect("the third time");
    assert_eq!(link.script(|s| s.receives.len()), 4, "posted once");
    t.close();
    assert_eq!(Arc::strong_count(&link.0), 2, "both halves are gone");
}

#[test]
fn tx_only_posts_no_receive() {
    let (_t, link) = connected(build(config(Mode::TxOnly)), Script::default());
    assert!(link.script(|s| s.receives.is_empty()));
}

#[test]
fn the_first_failed_completion_ends_the_monitor() {
    for (receive, what) in [(true, "poll"), (false, "send")] {
        let mut script = Script { room: 8, ..Script::default() };
        if receive {
            script.completions.push_back(send(0));
            script.completions.push_back(RecvCompletion { id: 1, result: Err(FLUSH_ERROR) });
        } else {
            script.send_error = Some(FLUSH_ERROR);
        }
        let (t, _link) = connected(build(config(Mode::Threads)), script);
        let error = t.blocking_monitor().expect_err(what);
        assert!(
            matches!(&error, Error::Completion { source, .. } if *source == FLUSH_ERROR),
            "{what}: {error}"
        );
        assert!(error.to_string().starts_with("scripted port 1: send failed: work request"), "{error}");
        assert_eq!(t.state(), State::Failed);
        assert!(t.error().expect("kept").to_string().contains("work request flushed"));
        assert_eq!(t.stats().completion_errors, 1);
        assert_eq!(t.stats().received, u64::from(receive), "what came before it counts");
    }
}

#[test]
fn a_poll_that_fails_fails_a_unified_end_for_good() {
    let (t, link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| s.recv_error = Some(FLUSH_ERROR));
    assert!(matches!(unified.rx_poll(), Err(Error::Completion { .. })));
    assert!(matches!(unified.rx_poll(), Err(Error::Completion { .. })), "it stays failed");
    assert!(!unified.is_open());
    assert_eq!((t.state(), t.stats().completion_errors), (State::Failed, 1));
}

#[test]
fn a_full_queue_is_back_pressure() {
    let script = Script { room: 1, reap_frees: 1, ..Script::default() };
    let (t, link) =
        connected(build(config(Mode::TxOnly).tx_mode(TxMode::WriteWithImm).peer_rx_base(0x1000)), script);
    let ends = t.take_ends().expect("once");
    (0..4).for_each(|slot| publish(&ends.tx, slot, slot.into())); // three more than there is room for
    let running = thread::spawn({
        let t = Arc::clone(&t);
        move || t.blocking_monitor()
    });
    for n in 4..40 {
        publish(&ends.tx, n % 4, u64::from(n));
    }
    wait_until("all of them", || link.script(|s| s.sent.len()) == 40);
    assert!(t.stats().tx_stalls > 0);
    assert_eq!(t.stats().sent, 40);
    let slots: Vec<_> = link.script(|s| s.sent.iter().map(|wr| wr.sge.offset / 64).collect());
    assert_eq!(slots, (0..40).map(|n| n % 4).collect::<Vec<u64>>());
    let verb = link.script(|s| s.sent[5].verb);
    assert_eq!(verb, Verb::Write { addr: 0x1040, rkey: Rkey::new(4), imm: Some(1) });
    t.close();
    running.join().expect("no panic").expect("no error");
}

#[test]
fn unified_waits_for_room_and_flushes_again_what_the_link_kept() {
    let script = Script { room: 1, reap_frees: 1, stuck_flushes: 3, ..Script::default() };
    let (t, link) = connected(build(config(Mode::Unified)), script);
    let mut unified = t.take_unified().expect("connected");
    for slot in 0..4 {
        unified.tx_publish(slot).expect("sent");
    }
    wait_until("all of them", || {
        assert_eq!(unified.rx_poll().expect("open"), None);
        link.script(|s| s.sent.len()) == 4
    });
}

#[test]
fn a_unified_publish_that_waits_ends_with_close() {
    let (t, _link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    let waiting = thread::spawn(move || unified.tx_publish(0));
    wait_until("the stall", || t.stats().tx_stalls > 0);
    t.close();
    assert!(matches!(waiting.join().expect("no panic"), Err(Error::Closed)));
}

#[test]
fn a_try_takes_no_frame_for_which_there_is_no_room() {
    let (t, link) = connected(build(config(Mode::Unified)), Script { room: 1, ..Script::default() });
    let mut unified = t.take_unified().expect("connected");
    assert!(unified.tx_try_publish(0).expect("open"));
    for _ in 0..3 {
        assert!(!unified.tx_try_publish(1).expect("open") && !unified.tx_stage(2).expect("open"));
    }
    assert_eq!((link.script(|s| s.sent.len()), t.stats().sent), (1, 1));
    // What is reaped on the way makes room at once.
    link.script(|s| s.reap_frees = 1);
    assert!(unified.tx_try_publish(1).expect("open") && unified.tx_stage(2).expect("open"));
    unified.tx_flush().expect("open");
    let slots = link.script(|s| s.sent.iter().map(|wr| wr.sge.offset / 64).collect::<Vec<_>>());
    assert_eq!((slots, t.stats().sent), (vec![0, 1, 2], 3));
    assert!(matches!(unified.tx_try_publish(4), Err(Error::Slot { slot: 4, num_pages: 4 })));
}

#[test]
fn staged_answers_leave_with_one_flush() {
    let (t, link) = connected(build(config(Mode::Unified)), Script { room: 3, ..Script::default() });
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| s.completions.extend([write(0, 0), write(1, 1), write(2, 2)]));
    let mut more = Vec::new();
    while let Some(slot) = unified.rx_poll().expect("open") {
        more.push(unified.rx_has_more());
        assert!(unified.tx_stage(slot).expect("room"));
        assert_eq!(link.script(|s| s.sent.len()), 0);
    }
    assert_eq!(more, [true, true, false]);
    // A full queue sends what is staged before it refuses.
    assert!(!unified.tx_stage(3).expect("open"));
    assert_eq!(link.script(|s| (s.staged.len(), s.sent.len())), (0, 3));
    link.script(|s| s.room = 1);
    assert!(unified.tx_stage(3).expect("open"));
    t.close();
    assert!(matches!(unified.tx_stage(0), Err(Error::Closed)));
    unified.tx_flush().expect("what was staged before leaves");
    assert_eq!((link.script(|s| s.sent.len()), t.stats().sent), (4, 4));
}

#[test]
fn an_immediate_that_names_no_slot_is_dropped_and_its_receive_posted_again() {
    let (t, link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| s.completions.extend([write(0, 4), write(1, 0xFFF), write(2, 1)]));
    assert_eq!(unified.rx_poll().expect("open"), Some(1));
    assert_eq!(unified.rx_poll().expect("open"), None);
    let stats = t.stats();
    assert_eq!((stats.received, stats.dropped), (3, 2));
    assert_eq!(stats.wire, [("scripted", 1)]);
    let posted = link.script(|s| s.receives.iter().skip(4).map(|wr| wr.id).collect::<Vec<_>>());
    assert_eq!(posted, [0, 1, 2]);
}

#[test]
fn the_slot_comes_from_where_the_format_says() {
    let cases = [
        (ImmediateFormat::Auto, 0xABCD_E003, Some(3)),
        (ImmediateFormat::Hsb, 0xABCD_E003, Some(3)),
        (ImmediateFormat::Hsb2510, 0xABCD_EF02, Some(2)),
        (ImmediateFormat::Slot, 0x0000_0002, Some(2)),
        (ImmediateFormat::Slot, 0x0000_1002, None),
        (ImmediateFormat::Ignore, 0x0000_0002, Some(0)),
    ];
    for (format, imm, slot) in cases {
        let (t, link) = connected(build(config(Mode::Unified).immediate(format)), Script::default());
        let mut unified = t.take_unified().expect("connected");
        link.script(|s| s.completions.push_back(write(0, imm)));
        assert_eq!(unified.rx_poll().expect("open"), slot, "{format:?} {imm:#x}");
    }
}

#[test]
fn unnamed_writes_go_round_the_ring_whatever_the_order_of_receives() {
    let ignore = config(Mode::Unified).immediate(ImmediateFormat::Ignore);
    let (t, link) = connected(build(ignore), Script::default());
    let mut unified = t.take_unified().expect("connected");
    let ends = t.take_ends().expect("once");
    ends.tx.publish(0); // holds slot 0 back
    link.script(|s| s.completions.extend((0..4).map(|id| write(id, 9))));
    let slots: Vec<_> = (0..3).map(|_| unified.rx_poll().expect("open")).collect();
    assert_eq!(slots, [Some(1), Some(2), Some(3)]);
    // The second lap consumes the receives in the order in which they were posted again.
    link.script(|s| s.completions.extend([1, 2, 3].map(|id| write(id, 9))));
    let slots: Vec<_> = (0..3).map(|_| unified.rx_poll().expect("open")).collect();
    assert_eq!(slots, [Some(1), Some(2), None], "slot 0, written again, is held back");
    assert_eq!((t.stats().received, t.stats().overruns), (7, 1));
}

#[test]
fn a_send_lands_in_the_receive_it_consumed() {
    let (t, link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| s.completions.extend([send(2), send(3)]));
    assert_eq!(unified.rx_poll().expect("open"), Some(2));
    assert_eq!(unified.rx_poll().expect("open"), Some(3));
    assert_eq!(t.stats().lost, 0, "receives are consumed in order; slots say nothing of losses here");
}

#[test]
fn a_burst_is_handed_out_before_the_link_is_asked_again() {
    let (t, link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| s.completions.extend([write(0, 0), write(1, 1), write(2, 2)]));
    assert_eq!(unified.rx_poll().expect("open"), Some(0));
    // It overwrites slot 1, which waits.
    link.script(|s| s.landed.push_back(write(3, 1)));
    assert_eq!(unified.rx_poll().expect("open"), Some(2));
    assert_eq!(unified.rx_poll().expect("open"), Some(1));
    assert_eq!(link.script(|s| s.polls), 1);
    assert_eq!((t.stats().received, t.stats().overruns), (4, 1));
    assert_eq!(unified.rx_poll().expect("open"), None);
    assert_eq!(link.script(|s| s.polls), 2);
    let posted = link.script(|s| s.receives.iter().skip(4).map(|wr| wr.id).collect::<Vec<_>>());
    assert_eq!(posted, [0, 1, 2, 3]);
}

#[test]
fn a_poll_offers_again_what_the_link_kept() {
    let script = Script { room: 8, stuck_flushes: 1, ..Script::default() };
    let (t, link) = connected(build(config(Mode::Unified)), script);
    let mut unified = t.take_unified().expect("connected");
    unified.tx_publish(0).expect("taken");
    assert_eq!(link.script(|s| s.sent.len()), 0);
    assert_eq!(unified.rx_poll().expect("open"), None);
    assert_eq!(link.script(|s| s.sent.len()), 1);
}

#[test]
fn a_lone_message_in_order_is_held_back_too() {
    for lone in [write(1, 1), send(1)] {
        let (t, link) = connected(build(config(Mode::Unified)), Script::default());
        let mut unified = t.take_unified().expect("connected");
        let ends = t.take_ends().expect("once");
        link.script(|s| s.completions.push_back(write(0, 0)));
        assert_eq!(unified.rx_poll().expect("open"), Some(0));
        ends.tx.publish(1); // nobody sends it in unified mode
        link.script(|s| s.completions.push_back(lone));
        assert_eq!(unified.rx_poll().expect("open"), None, "{lone:?}");
    }
}

/// However many they are: they come from the link by 16.
#[test]
fn all_at_hand_are_looked_at_before_the_first_is_handed_out() {
    let (t, link) = connected(build(config(Mode::Unified).num_pages(64)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    link.script(|s| {
        s.completions.extend((0..16).map(|n| write(n, n)));
        s.landed.extend((16..40).map(|n| write(n, n)));
        s.landed.push_back(write(40, 0)); // overwrites the first
    });
    let slots: Vec<_> = std::iter::from_fn(|| unified.rx_poll().expect("open")).collect();
    assert_eq!(slots, (1..40).chain([0]).collect::<Vec<_>>());
    assert_eq!((t.stats().received, t.stats().overruns), (41, 1));
}

#[test]
fn what_is_held_back_does_not_keep_the_link_from_being_asked() {
    let (t, link) = connected(build(config(Mode::Unified)), Script::default());
    let mut unified = t.take_unified().expect("connected");
    let ends = t.take_ends().expect("once");
    ends.tx.publish(0); // nobody sends it in unified mode
    link.script(|s| s.completions.push_back(write(0, 0)));
    assert_eq!(unified.rx_poll().expect("open"), None);
    link.script(|s| s.completions.push_back(write(1, 1)));
    assert_eq!(unified.rx_poll().expect("open"), Some(1));
    assert_eq!((t.stats().received, t.stats().lost), (2, 0), "each was counted once");
}

#[test]
fn what_was_published_before_the_stop_leaves_wherever_it_is() {
    let script = Script { room: 64, ..Script::default() };
    let (t, link) = connected(build(config(Mode::TxOnly).num_pages(256)), script);
    let ends = t.take_ends().expect("once");
    let running = thread::spawn({
        let t = Arc::clone(&t);
        move || t.blocking_monitor()
    });
    publish(&ends.tx, 0, 0);
    wait_until("the first", || link.script(|s| s.sent.len()) == 1);
    // Far behind the cursor; whether the running thread or the last look finds them.
    publish(&ends.tx, 200, 0);
    publish(&ends.tx, 90, 0);
    t.close();
    running.join().expect("no panic").expect("no error");
    let mut slots: Vec<_> = link.script(|s| s.sent.iter().map(|wr| wr.sge.offset / 64).collect());
    slots.sort_unstable();
    assert_eq!(slots, [0, 90, 200]);
}

#[test]
fn an_answer_of_another_length_changes_no_later_one() {
    let (t, link) = connected(build(config(Mode::Unified)), Script { room: 8, ..Script::default() });
    let mut unified = t.take_unified().expect("connected");
    unified.tx_publish_len(1, 64).expect("sent");
    unified.tx_publish(2).expect("sent");
    assert!(matches!(unified.tx_publish_len(3, 65), Err(Error::Length { len: 65, page_size: 64 })));
    assert!(matches!(unified.tx_publish(4), Err(Error::Slot { slot: 4, num_pages: 4 })));
    let sent = link.script(|s| s.sent.iter().map(|wr| (wr.sge.offset, wr.sge.len)).collect::<Vec<_>>());
    assert_eq!(sent, [(64, 64), (128, 16)]);
    t.close();
    assert!(matches!(unified.tx_publish(4), Err(Error::Closed)));
}
