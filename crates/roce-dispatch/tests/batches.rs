//! Answers and requests that leave together, and a link that has no room for them.

mod common;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use roce_core::Line;
use roce_dispatch::caller::{CallCounts, CallError, Caller, Dispatched, Frame, Function};
use roce_dispatch::rpc::Status;
use roce_dispatch::{DispatchCounts, FunctionTable, UnifiedLink, UnifiedLoop};
use roce_ring::{Geometry, SlotBytes};

const INCREMENT: Function<'_> = Function::new("rpc_increment");

/// Rings as a link that has a send queue: what is staged is published at the flush.
struct Queue {
    link: RingLink,
    staged: Vec<u32>,
    /// Messages at hand.
    arrived: Vec<u32>,
    log: Log,
}

#[derive(Clone)]
struct Log(Arc<Mutex<Script>>);

impl Log {
    fn now(&self) -> MutexGuard<'_, Script> {
        self.0.lock().expect("no panic under the lock")
    }
}

/// What the link is to do, and what it did.
struct Script {
    /// Messages that it still takes.
    room: usize,
    /// Polls, stagings and flushes that go well.
    polls: usize,
    stagings: usize,
    flushes: usize,
    /// How many messages left with each flush.
    left: Vec<usize>,
    /// Flushes before the last poll.
    left_before_poll: usize,
}

impl Queue {
    fn take_room(&self) -> bool {
        let mut script = self.log.now();
        let taken = self.link.is_open() && script.room > 0;
        script.room -= usize::from(taken);
        taken
    }
}

impl UnifiedLink for Queue {
    type Error = LinkDown;

    fn geometry(&self) -> Geometry {
        self.link.geometry()
    }

    fn is_open(&self) -> bool {
        self.link.is_open()
    }

    fn rx_poll(&mut self) -> Result<Option<u32>, LinkDown> {
        let mut script = self.log.now();
        script.left_before_poll = script.left.len();
        script.polls = script.polls.checked_sub(1).ok_or(LinkDown)?;
        if self.arrived.is_empty() {
            while let Ok(Some(slot)) = self.link.rx_poll() {
                self.arrived.insert(0, slot);
            }
        }
        Ok(self.arrived.pop())
    }

    fn rx_has_more(&self) -> bool {
        !self.arrived.is_empty()
    }

    fn tx_publish(&mut self, slot: u32) -> Result<bool, LinkDown> {
        if !self.is_open() {
            return Ok(false);
        }
        self.link.tx.publish(slot);
        self.log.now().left.push(1);
        Ok(true)
    }

    fn tx_try_publish(&mut self, slot: u32) -> Result<bool, LinkDown> {
        if self.take_room() { self.tx_publish(slot) } else { Ok(false) }
    }

    fn tx_stage(&mut self, slot: u32) -> Result<bool, LinkDown> {
        let left = self.log.now().stagings.checked_sub(1).ok_or(LinkDown)?;
        self.log.now().stagings = left;
        let taken = self.take_room();
        if taken {
            self.staged.push(slot);
        }
        Ok(taken)
    }

    fn tx_flush(&mut self) -> Result<(), LinkDown> {
        let mut script = self.log.now();
        script.flushes = script.flushes.checked_sub(1).ok_or(LinkDown)?;
        script.left.push(self.staged.len());
        self.staged.drain(..).for_each(|slot| self.link.tx.publish(slot));
        Ok(())
    }

    fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.link.rx_slot(slot)
    }

    fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.link.tx_slot(slot)
    }

    fn lines(&self, slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        self.link.lines(slot)
    }
}

fn queue() -> (Wire, Queue, Log) {
    let (wire, link) = link(geometry(8, 128, 64));
    let script = Script {
        room: 100,
        polls: 1000,
        stagings: usize::MAX,
        flushes: 100,
        left: Vec::new(),
        left_before_poll: 0,
    };
    let log = Log(Arc::new(Mutex::new(script)));
    (wire, Queue { link, staged: Vec::new(), arrived: Vec::new(), log: log.clone() }, log)
}

fn dispatcher(answers_per_flush: u32) -> (Wire, UnifiedLoop<Queue>, Log) {
    let mut table = FunctionTable::new();
    table.register("rpc_increment", increment).expect("an empty table");
    let (wire, queue, log) = queue();
    let serving = UnifiedLoop::new(queue, table).expect("a frame holds a header");
    (wire, serving.answers_per_flush(answers_per_flush), log)
}

/// Requests in the first `n` slots.
fn deliver(wire: &Wire, n: u32) {
    (0..n).for_each(|slot| wire.deliver(slot, &request("rpc_increment", slot, &[byte(slot)])));
}

/// The answers that have left.
fn answers(wire: &mut Wire) -> u32 {
    let answers: Vec<_> = (0..8).filter_map(|slot| wire.take(slot)).collect();
    for answer in &answers {
        assert_answers(answer, answer.slot, Status::SUCCESS, &[byte(answer.slot + 1)]);
    }
    u32::try_from(answers.len()).expect("eight at most")
}

fn served(requests: u64, responses: u64) -> DispatchCounts {
    DispatchCounts { requests, responses, ..DispatchCounts::default() }
}

#[test]
fn answers_to_what_is_at_hand_leave_together() {
    for (at_most, expected) in [(1, vec![1; 5]), (2, vec![2, 2, 1]), (3, vec![3, 2]), (100, vec![5])] {
        let (mut wire, mut dispatcher, log) = dispatcher(at_most);
        deliver(&wire, 5);
        assert_eq!(dispatcher.poll(), Ok(5));
        assert_eq!(log.now().left, expected);
        assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (5, served(5, 5)));
    }
}

#[test]
fn a_lone_answer_waits_for_no_poll() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 1);
    log.now().polls = 1;
    assert_eq!(dispatcher.poll(), Err(LinkDown), "at the second poll");
    assert_eq!(log.now().left, [1]);
    assert_eq!(log.now().left_before_poll, 1, "it has left by then");
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (1, served(1, 1)));
}

#[test]
fn what_is_no_request_holds_no_answer_back() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 2);
    wire.deliver(2, &[0; 64]);
    assert_eq!(dispatcher.poll(), Ok(3));
    assert_eq!((answers(&mut wire), log.now().left.clone()), (2, vec![2]));
}

#[test]
fn a_queue_that_is_full_in_mid_batch_loses_no_answer() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 6);
    log.now().room = 2;
    assert_eq!(dispatcher.poll(), Ok(6));
    assert_eq!(log.now().left[..3], [2, 1, 0], "the batch, then each as there is room");
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (6, served(6, 6)));
}

#[test]
fn an_error_in_mid_batch_lets_the_answers_before_it_leave() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 6);
    log.now().polls = 3;
    assert_eq!(dispatcher.poll(), Err(LinkDown));
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (3, served(3, 3)));

    log.now().polls = 100;
    log.now().flushes = 0;
    assert_eq!(dispatcher.poll(), Err(LinkDown));
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (0, served(6, 3)), "none counts as sent");
}

#[test]
fn an_answer_that_cannot_be_staged_holds_none_before_it_back() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 4);
    log.now().stagings = 2;
    assert_eq!(dispatcher.poll(), Err(LinkDown));
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (2, served(3, 2)));
}

#[test]
fn a_flush_that_fails_behind_the_last_message_is_told() {
    let (mut wire, mut dispatcher, log) = dispatcher(16);
    deliver(&wire, 2);
    wire.deliver(2, &[0; 64]);
    log.now().flushes = 0;
    assert_eq!(dispatcher.poll(), Err(LinkDown));
    assert_eq!(answers(&mut wire), 0);
    let expected = DispatchCounts { bad_magic: 1, ..served(2, 0) };
    assert_eq!(dispatcher.stats().snapshot(), expected);
}

#[test]
fn a_close_in_mid_batch_lets_the_answers_before_it_leave() {
    let (mut wire, queue, log) = queue();
    let open = queue.link.open.clone();
    let mut table = FunctionTable::new();
    table
        .register("rpc_increment", move |args, result| {
            open.store(args != [3], Ordering::Relaxed);
            increment(args, result)
        })
        .expect("an empty table");
    let mut dispatcher =
        UnifiedLoop::new(queue, table).expect("a frame holds a header").answers_per_flush(16);
    deliver(&wire, 4);
    assert_eq!(dispatcher.poll(), Ok(4));
    assert_eq!(log.now().left, [3], "the fourth request's handler saw the close");
    assert_eq!((answers(&mut wire), dispatcher.stats().snapshot()), (3, served(4, 3)));
}

/// Serves `n` requests of the caller's.
fn serve_some(wire: &mut Wire, n: usize) {
    for _ in 0..n {
        let slot = wire.tx.next_published().expect("a request");
        let mut frame = vec![0; 64];
        wire.tx.peek(slot).expect("a request").bytes().copy_to(0, &mut frame);
        wire.tx.claim(slot);
        let request = roce_dispatch::rpc::Request::parse(&frame).expect("a request");
        let id = request.request_id;
        roce_dispatch::rpc::Response { request_id: id, ..Default::default() }.emit(&mut frame);
        wire.deliver(slot, &frame);
    }
}

fn stage<'c>(caller: &'c Caller<Queue>) -> Frame<'c, Queue, Dispatched> {
    caller.acquire(&INCREMENT).expect("a free slot").stage(CEILING).expect("room")
}

#[test]
fn staged_calls_leave_with_the_next_flush_poll_or_wait() {
    let (mut wire, queue, log) = queue();
    let caller = Caller::new(queue).expect("a frame holds a header");
    let calls = [stage(&caller), stage(&caller), stage(&caller)];
    assert_eq!((log.now().left.len(), wire.tx.next_published()), (0, None));
    caller.flush().expect("open");
    assert_eq!(log.now().left, [3]);
    serve_some(&mut wire, 3);
    calls.into_iter().for_each(|call| drop(call.wait().expect("answered")));
    assert_eq!(log.now().left, [3], "a poll flushes nothing where nothing is staged");

    let call = stage(&caller);
    assert_eq!(caller.poll().expect("open"), 0);
    serve_some(&mut wire, 1);
    drop(call.wait().expect("answered"));
    let lone = caller.acquire(&INCREMENT).expect("free").dispatch(CEILING).expect("room");
    serve_some(&mut wire, 1);
    drop(lone.wait().expect("answered"));
    assert_eq!(log.now().left, [3, 1, 1]);
    assert_eq!(caller.stats().snapshot(), CallCounts { calls: 5, answers: 5, ..CallCounts::default() });
}

#[test]
fn staged_calls_wait_for_the_answers_at_hand() {
    let (mut wire, queue, log) = queue();
    let caller = Caller::new(queue).expect("a frame holds a header");
    let first = [stage(&caller), stage(&caller), stage(&caller)];
    caller.flush().expect("open");
    serve_some(&mut wire, 3);
    let mut pending: Vec<_> = first.into_iter().collect();
    let mut staged = Vec::new();
    for _ in 0..3 {
        let (_, answer) = caller.wait_any(&mut pending).expect("pending");
        drop(answer.expect("answered"));
        staged.push(stage(&caller));
    }
    assert_eq!(log.now().left, [3], "none has left while answers were at hand");
    caller.poll().expect("open");
    assert_eq!(log.now().left, [3, 3], "and then all together");
    serve_some(&mut wire, 3);
    staged.into_iter().for_each(|call| drop(call.wait().expect("answered")));
}

#[test]
fn a_call_for_which_the_link_has_no_room_fails_in_time_and_is_not_sent() {
    const SHORT: Duration = Duration::from_millis(5);
    let (mut wire, queue, log) = queue();
    let caller = Caller::new(queue).expect("a frame holds a header");
    log.now().room = 2;
    let sent = [stage(&caller), caller.acquire(&INCREMENT).expect("free").dispatch(CEILING).expect("room")];
    let began = Instant::now();
    for staged in [false, true] {
        let frame = caller.acquire(&INCREMENT).expect("free");
        assert_eq!(frame.request_id(), 3, "the next call takes the place of one that was not sent");
        let refused = if staged { frame.stage(SHORT) } else { frame.dispatch(SHORT) };
        let refused = refused.map(|frame| frame.request_id());
        assert!(matches!(refused, Err(CallError::NoRoom { timeout: SHORT })), "{refused:?}");
        assert_eq!(refused.expect_err("seen above").code(), 4);
    }
    let forgotten = caller.acquire(&INCREMENT).expect("free").dispatch_and_forget(SHORT);
    assert!(matches!(forgotten, Err(CallError::NoRoom { .. })));
    assert!(began.elapsed() >= 3 * SHORT, "it was given its time");

    log.now().room = 1;
    let third = caller.acquire(&INCREMENT).expect("free").dispatch(CEILING).expect("room again");
    assert_eq!((third.request_id(), caller.in_use()), (3, 3));
    caller.flush().expect("open");
    serve_some(&mut wire, 3);
    sent.into_iter().for_each(|call| drop(call.wait().expect("answered")));
    drop(third.wait().expect("answered"));
    let expected = CallCounts { calls: 3, answers: 3, no_room: 3, ..CallCounts::default() };
    assert_eq!(caller.stats().snapshot(), expected);
}

/// One thread waits with all its patience, another has none; the link's thread waits for neither.
#[test]
fn a_handle_gives_each_call_its_own_time_on_a_link_without_room() {
    let (mut wire, queue, log) = queue();
    log.now().room = 0;
    log.now().polls = usize::MAX;
    let handle = Caller::new(queue).expect("a frame holds a header").into_handle().expect("a thread");
    let stats = handle.stats();
    let call = |timeout| {
        let handle = handle.clone();
        thread::spawn(move || handle.call(&INCREMENT, &[1], &mut [0; 8], timeout))
    };
    let (patient, more) = (call(CEILING), call(CEILING));
    for n in 1..=3 {
        let refused = call(Duration::from_millis(2)).join().expect("no panic");
        assert!(matches!(refused, Err(CallError::NoRoom { .. })), "{refused:?}");
        assert_eq!(stats.snapshot(), CallCounts { no_room: n, ..CallCounts::default() });
    }
    log.now().room = 100;
    wait_until("both requests", || {
        let sent = wire.tx.next_published().is_some();
        if sent {
            serve_some(&mut wire, 1);
        }
        patient.is_finished() && more.is_finished()
    });
    for call in [patient, more] {
        assert!(matches!(call.join().expect("no panic"), Ok(0)));
    }
    assert_eq!(stats.snapshot(), CallCounts { calls: 2, answers: 2, no_room: 3, ..CallCounts::default() });
}

#[test]
fn a_call_on_a_closed_link_does_not_wait_for_room() {
    let (_wire, queue, _log) = queue();
    queue.link.open.store(false, Ordering::Relaxed);
    let caller = Caller::new(queue).expect("a frame holds a header");
    let call = caller.acquire(&INCREMENT).expect("free").dispatch(CEILING);
    assert!(matches!(call.map(|frame| frame.request_id()), Err(CallError::Closed)));
    assert_eq!(caller.stats().snapshot(), CallCounts::default());
}
