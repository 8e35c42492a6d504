//! The player: sends the windows, waits for their answers, records them.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{CompletionError, Device};
use roce_rendezvous::hsb::regs;

use crate::answer::{self, Expected};
use crate::clock::Timestamp;
use crate::emulator::Config;
use crate::link::{Links, Outgoing, Peer, SendError};
use crate::regs::{LoopCounts, Order, Pass, Registers};
use crate::stream::{Stream, Target};
use crate::summary::{Failure, PassError, Summary};

/// How often a standing player looks at its registers.
const IDLE: Duration = Duration::from_millis(1);
/// Polls before the first yield.
const SPINS: u32 = 64;
/// How long a window in flight may still be answered after the run was stopped.
const STOP_GRACE: Duration = Duration::from_millis(50);
/// How long it may still be answered after the host ordered something else.
const ORDER_GRACE: Duration = Duration::from_secs(1);
/// A wait longer than this sleeps; the rest of it spins.
const SLEEP_ABOVE: Duration = Duration::from_millis(2);
/// How long a wait sleeps before it looks whether it is still wanted.
const NAP: Duration = Duration::from_millis(20);

/// The player of one run.
pub(crate) struct Player<'a, D: Device> {
    registers: &'a Registers,
    links: &'a mut Links<D>,
    config: &'a Config,
    stop: &'a AtomicBool,
    progress: &'a mut Progress,
    summary: Summary,
    flight: Flight,
    known: Known,
}

/// Where the player is, from run to run.
pub(crate) struct Progress {
    /// The order obeyed last.
    pub(crate) done: Order,
    /// Of the virtual port.
    pub(crate) stream: Stream,
    /// The restart that the stream began with.
    pub(crate) resets: u32,
}

/// The virtual port as it was when it was last looked at.
#[derive(Default)]
struct Known {
    changes: Option<u32>,
    target: Option<Target>,
}

/// The window in flight and its answer.
struct Flight {
    forward: bool,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Where messages are copied to, to be looked at.
    incoming: Vec<u8>,
    last_stamp: Timestamp,
}

/// A pass being played.
struct Playing {
    order: Order,
    pass: Pass,
}

/// How the wait for an answer ended.
enum Wait {
    Answered(Timestamp),
    TimedOut,
    CalledOff,
}

impl<'a, D: Device> Player<'a, D> {
    pub(crate) fn new(
        registers: &'a Registers,
        links: &'a mut Links<D>,
        config: &'a Config,
        stop: &'a AtomicBool,
        progress: &'a mut Progress,
    ) -> Self {
        let flight = Flight {
            forward: config.forward,
            request: Vec::with_capacity(config.longest_window() as usize),
            answer: Vec::with_capacity(config.longest_answer() as usize),
            incoming: vec![0; config.longest_answer() as usize],
            last_stamp: Timestamp::default(),
        };
        let (summary, known) = (Summary::default(), Known::default());
        Self { registers, links, config, stop, progress, summary, flight, known }
    }

    /// Plays what the registers order until it is stopped.
    pub(crate) fn run(mut self) -> Summary {
        while !self.is_stopped() {
            let order = self.registers.order();
            if order == self.progress.done {
                thread::sleep(IDLE);
            } else if !order.runs() {
                self.progress.done = order;
                self.settle_statistics(order);
            } else if self.target().is_some() {
                self.progress.done = order;
                self.obey(order);
            } else {
                thread::sleep(IDLE);
            }
        }
        self.summary
    }

    /// A loop that was over before it was seen sent nothing.
    fn settle_statistics(&self, order: Order) {
        if self.registers.owes_statistics() {
            self.registers.publish_loop(order, &LoopCounts::default());
        }
    }

    /// The host's ring; `None` while the virtual port does not tell all of it, or lets nothing out.
    fn target(&mut self) -> Option<Target> {
        self.notice_restart();
        let changes = self.registers.target_changes();
        if self.known.changes != Some(changes) {
            self.known = Known { changes: Some(changes), target: self.look() };
        }
        self.known.target
    }

    fn look(&self) -> Option<Target> {
        let mut target = self.registers.target()?;
        target.ip = self.config.host_ip.unwrap_or(target.ip);
        (target.streams && !target.ip.is_unspecified()).then_some(target)
    }

    fn notice_restart(&mut self) {
        let resets = self.registers.resets();
        if self.progress.resets != resets {
            self.progress.resets = resets;
            self.progress.stream = self.config.stream();
        }
    }

    fn obey(&mut self, order: Order) {
        let start = Instant::now();
        let before = LoopCounts::of(&self.summary);
        if let Err(error) = self.begin(order) {
            tracing::error!(%error, "the pass failed");
            self.summary.refused.push(error);
        }
        if order.loops() {
            self.registers.publish_loop(order, &LoopCounts::of(&self.summary).since(before));
        }
        self.summary.duration += start.elapsed();
    }

    fn begin(&mut self, order: Order) -> Result<(), PassError> {
        let pass = self.registers.pass()?;
        if let Some(target) = self.target() {
            self.connect(&target)?;
        }
        // What came since the last pass answers none of this one's windows.
        self.drain()?;
        self.play(&Playing { order, pass })?;
        self.drain()
    }

    fn play(&mut self, playing: &Playing) -> Result<(), PassError> {
        let windows = u64::from(playing.pass.windows);
        let mut due = Instant::now();
        for k in 0.. {
            let over = k == windows && !playing.order.loops();
            if over || !self.wait_until(due, playing.order) {
                break;
            }
            due = (due + playing.pass.spacing).max(Instant::now());
            self.play_window(playing, k)?;
        }
        Ok(())
    }

    fn connect(&mut self, target: &Target) -> Result<(), PassError> {
        self.links.connect(Peer { qpn: target.qpn, ip: target.ip }, self.progress.stream.psn())
    }

    fn play_window(&mut self, playing: &Playing, k: u64) -> Result<(), PassError> {
        let Some(target) = self.target() else {
            self.summary.masked += 1;
            self.record(playing, k, None);
            thread::yield_now();
            return Ok(());
        };
        self.connect(&target)?;
        self.load(playing, &target, playing.pass.index(k));
        let sent_at = Instant::now();
        let captured = match self.send(&target)? {
            false => None,
            true => match self.await_answer(sent_at, playing.order)? {
                Wait::Answered(time) => {
                    self.summary.round_trips.record(sent_at.elapsed());
                    self.judge();
                    Some(time)
                }
                Wait::TimedOut => {
                    self.summary.timeouts.push(self.flight.request_id());
                    None
                }
                Wait::CalledOff => {
                    self.summary.abandoned += 1;
                    None
                }
            },
        };
        self.record(playing, k, captured);
        Ok(())
    }

    /// Takes a window out of the playback memory, cut to the frame and the page, and stamps it.
    fn load(&mut self, playing: &Playing, target: &Target, index: u32) {
        let frame = match target.frame_size {
            0 => u32::MAX,
            size => size.max(answer::HEADER_SIZE),
        };
        let window = (playing.pass.beats * regs::BEAT_SIZE).min(self.config.page_size).min(frame);
        let len = u64::from(window).min(target.pages.room());
        let flight = &mut self.flight;
        flight.request.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        self.registers.playback.assemble(index, playing.pass.beats, &mut flight.request);
        flight.last_stamp = Timestamp::now_after(flight.last_stamp);
        answer::stamp(&mut flight.request, flight.last_stamp.packed());
    }

    /// Whether the window went out.
    fn send(&mut self, target: &Target) -> Result<bool, PassError> {
        let len = u32::try_from(self.flight.request.len()).unwrap_or(u32::MAX);
        let frame = self.progress.stream.next_frame(target, len, self.links.packet_limit());
        let outgoing = Outgoing {
            frame,
            data: &self.flight.request,
            metadata: frame.metadata(self.flight.last_stamp, Timestamp::now()),
            rkey: target.rkey,
        };
        let (packets, sent) = self.links.send(&outgoing);
        self.progress.stream.end_frame(&frame, packets);
        self.registers.set_psn(self.progress.stream.psn());
        self.summary.packets += u64::from(packets);
        let error = match sent {
            Ok(()) => {
                self.summary.windows += 1;
                return Ok(true);
            }
            Err(error) => error,
        };
        self.summary.send_errors.push(self.flight.request_id());
        match error {
            SendError::Frame(error) => {
                tracing::warn!(%error, "a window could not be sent");
                Ok(false)
            }
            SendError::QueuePair(error) => Err(self.broken(error)),
        }
    }

    /// Leaves the answer in the flight.
    fn await_answer(&mut self, sent_at: Instant, order: Order) -> Result<Wait, PassError> {
        let mut limit = self.config.response_timeout;
        let mut called_off = None;
        let mut spins = 0;
        loop {
            // Before the poll: however long this thread is kept waiting, what has come in time counts.
            let elapsed = sent_at.elapsed();
            if self.poll(true)? {
                return Ok(Wait::Answered(Timestamp::now()));
            }
            if spins < SPINS {
                spins += 1;
                hint::spin_loop();
                continue;
            }
            if let Some(grace) = self.grace(order) {
                limit = limit.min(*called_off.get_or_insert(elapsed) + grace);
            }
            if elapsed >= limit {
                return Ok(if called_off.is_some() { Wait::CalledOff } else { Wait::TimedOut });
            }
            thread::yield_now();
        }
    }

    /// How much longer to wait, once nobody wants the pass any more.
    fn grace(&self, order: Order) -> Option<Duration> {
        if self.is_stopped() {
            return Some(STOP_GRACE);
        }
        (self.registers.order() != order).then_some(ORDER_GRACE)
    }

    /// Takes what has arrived. Whether it holds the answer, if one is awaited; all else is late.
    fn poll(&mut self, awaited: bool) -> Result<bool, PassError> {
        let Flight { forward, request, answer, incoming, .. } = &mut self.flight;
        let expected = Expected { request, forward: *forward };
        let mut found = false;
        let polled = self.links.poll(incoming, |message| match message {
            Some(message) if awaited && !found && expected.is_answered_by(message) => {
                found = true;
                answer.clear();
                answer.extend_from_slice(message);
            }
            Some(_) => self.summary.late += 1,
            None => self.summary.ignored += 1,
        });
        match polled {
            Ok(()) => Ok(found),
            Err(error) => Err(self.broken(error)),
        }
    }

    fn drain(&mut self) -> Result<(), PassError> {
        self.poll(false).map(drop)
    }

    fn judge(&mut self) {
        self.summary.responses += 1;
        let expected = Expected { request: &self.flight.request, forward: self.flight.forward };
        if let Err(kind) = expected.judge(&self.flight.answer) {
            self.summary.failures.push(Failure { request_id: self.flight.request_id(), kind });
        }
    }

    /// Records the answer to window `k` in the capture, or that there is none.
    fn record(&self, playing: &Playing, k: u64, captured: Option<Timestamp>) {
        let capture = &self.registers.capture;
        // Once the host ordered something else the capture may be armed for that.
        if !capture.is_armed() || self.registers.order() != playing.order {
            return;
        }
        let pass = playing.pass;
        let answer = captured.map_or(&[][..], |_| &self.flight.answer);
        capture.store(pass.index(k) * pass.beats, pass.beats, answer, captured.unwrap_or_default());
        if k + 1 == u64::from(pass.windows) {
            capture.complete();
        }
    }

    fn broken(&mut self, error: CompletionError) -> PassError {
        self.links.abandon();
        PassError::QueuePair(error)
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// `false` when the run was stopped or the host ordered something else.
    fn wait_until(&self, due: Instant, order: Order) -> bool {
        loop {
            if self.is_stopped() || self.registers.order() != order {
                return false;
            }
            match due.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return true,
                left if left > SLEEP_ABOVE => thread::sleep((left - SLEEP_ABOVE / 2).min(NAP)),
                _ => thread::yield_now(),
            }
        }
    }
}

impl Flight {
    fn request_id(&self) -> u32 {
        answer::request_id(&self.request).unwrap_or(0)
    }
}
