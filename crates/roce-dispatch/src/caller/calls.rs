//! The calls in flight: which slot, which id, until when, and what came of them.

use std::time::{Duration, Instant};

use roce_transport::{Backoff, SpinPolicy};

use super::CallError;
use super::stats::{CallStats, Event};
use crate::buffer::Buffer;
use crate::rpc::{HEADER_LEN, Request, Response};
use crate::{DispatchError, UnifiedLink};

/// A look at the clock is due after so many polls; one in vain counts for several.
const POLLS_PER_CLOCK: u32 = 64;
const VAIN_POLL: u32 = 8;

pub(super) struct Calls<L> {
    link: L,
    /// Bytes behind a header.
    room: usize,
    slots: Box<[Slot]>,
    /// Results that were moved out of the ring, `room` bytes per slot.
    moved: Buffer,
    /// The id that the next call takes, if its slot is free.
    next_id: u32,
    taken: u32,
    /// Some requests leave with the next flush.
    staged: bool,
    /// The one slot whose results are still in the ring.
    in_ring: Option<u32>,
    /// Polls since the last look at the clock.
    polls: u32,
    /// Calls whose time does not run yet.
    unstamped: u32,
    /// No call expires before.
    next_deadline: Option<Instant>,
    stats: CallStats,
}

struct Slot {
    state: State,
    /// Of the call that has it, or had it last.
    id: u32,
    /// Nobody waits: the slot becomes free when the call is over.
    abandoned: bool,
    capacity: u32,
    timeout: Duration,
    deadline: Deadline,
    /// How many of its first bytes may be other than zero.
    dirty: usize,
}

enum State {
    Free,
    Acquired,
    InFlight,
    Over(Result<Reply, CallError>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Deadline {
    Unstamped,
    Never,
    At(Instant),
}

/// Results, and where they are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reply {
    pub(super) len: usize,
    pub(super) ptp_timestamp: u64,
    /// The RX slot; `None` once they were moved out.
    rx: Option<u32>,
}

/// What goes into a request's header, and how its call is to be waited for.
pub(super) struct Dispatch {
    pub(super) function_id: u32,
    pub(super) arg_len: usize,
    pub(super) ptp_timestamp: u64,
    pub(super) capacity: u32,
    pub(super) timeout: Duration,
    pub(super) abandoned: bool,
    /// Leaves with the next flush.
    pub(super) staged: bool,
}

impl<L: UnifiedLink> Calls<L> {
    pub(super) fn new(link: L, stats: CallStats) -> Result<Self, DispatchError> {
        let geometry = link.geometry();
        let frame_size = geometry.frame_size();
        let room = (frame_size as usize)
            .checked_sub(HEADER_LEN)
            .ok_or(DispatchError::FrameTooSmall { frame_size })?;
        let slots = (0..geometry.num_pages()).map(|_| Slot::new(frame_size as usize)).collect();
        Ok(Self {
            link,
            room,
            slots,
            moved: Buffer::new(room * geometry.num_pages() as usize),
            next_id: 1,
            taken: 0,
            staged: false,
            in_ring: None,
            polls: 0,
            unstamped: 0,
            next_deadline: None,
            stats,
        })
    }

    /// Slot 0 is next, as a fresh peer expects.
    pub(super) fn replace_link(&mut self, link: L) -> Result<L, DispatchError> {
        let mut fresh = Self::new(link, self.stats.clone())?;
        let mask = fresh.mask();
        // Past every id that was given away, to the first that belongs into slot 0.
        fresh.next_id = (self.next_id.wrapping_sub(1).wrapping_add(mask) & !mask).wrapping_add(1);
        Ok(std::mem::replace(self, fresh).link)
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }

    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.is_open()
    }

    /// The next free slot in ring order: a slot is used again as late as can be.
    pub(super) fn acquire(&mut self) -> Option<u32> {
        if self.taken as usize == self.slots.len() {
            return None;
        }
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            let at = self.slot_of(id);
            let slot = &mut self.slots[at as usize];
            if matches!(slot.state, State::Free) {
                slot.state = State::Acquired;
                slot.id = id;
                self.taken += 1;
                return Some(at);
            }
        }
    }

    pub(super) fn id(&self, slot: u32) -> u32 {
        self.slots[slot as usize].id
    }

    /// Puts argument bytes at `offset`, and zeroes those from `end` to there.
    pub(super) fn write(&mut self, slot: u32, end: usize, offset: usize, bytes: &[u8]) {
        let tx = self.link.tx_slot(slot);
        let state = &mut self.slots[slot as usize];
        tx.fill_zero(HEADER_LEN + end..(HEADER_LEN + offset).min(state.dirty));
        tx.copy_from(HEADER_LEN + offset, bytes);
        state.dirty = state.dirty.max(HEADER_LEN + offset + bytes.len());
    }

    /// Writes the header of the request whose arguments are in the slot.
    pub(super) fn prepare(&mut self, slot: u32, call: &Dispatch) {
        let state = &mut self.slots[slot as usize];
        let request = Request {
            function_id: call.function_id,
            // At most a frame, whose length has 32 bits.
            arg_len: u32::try_from(call.arg_len).unwrap_or(u32::MAX),
            request_id: state.id,
            ptp_timestamp: call.ptp_timestamp,
        };
        let mut header = [0; HEADER_LEN];
        request.emit(&mut header);
        let tx = self.link.tx_slot(slot);
        tx.copy_from(0, &header);
        let end = HEADER_LEN + call.arg_len;
        tx.fill_zero(end..state.dirty);
        state.dirty = end;
    }

    /// Sends, or stages, a prepared request; `false` when the link has no room now.
    pub(super) fn try_dispatch(&mut self, slot: u32, call: &Dispatch) -> Result<bool, CallError> {
        let sent = if call.staged { self.link.tx_stage(slot) } else { self.link.tx_try_publish(slot) };
        if !sent.map_err(CallError::link)? {
            return if self.is_open() { Ok(false) } else { Err(CallError::Closed) };
        }
        self.staged |= call.staged;
        self.stats.count(Event::Call);
        let state = &mut self.slots[slot as usize];
        state.capacity = call.capacity;
        state.timeout = call.timeout;
        state.deadline = Deadline::Unstamped;
        state.abandoned = call.abandoned;
        state.state = State::InFlight;
        self.unstamped += 1;
        Ok(true)
    }

    /// As [`try_dispatch`](Self::try_dispatch), but waits for room, as long as the call may take; the answer has the
    /// rest of that time.
    #[cold]
    pub(super) fn dispatch_waiting(
        &mut self,
        slot: u32,
        call: &Dispatch,
        spin: SpinPolicy,
    ) -> Result<(), CallError> {
        let deadline = Instant::now().checked_add(call.timeout);
        let mut backoff = Backoff::new(spin);
        while !self.try_dispatch(slot, call)? {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(self.no_room(call.timeout));
            }
            backoff.idle();
        }
        self.stamp(slot, deadline);
        Ok(())
    }

    /// Why a request was not sent; counts it.
    pub(super) fn no_room(&self, timeout: Duration) -> CallError {
        self.stats.count(Event::NoRoom);
        CallError::NoRoom { timeout }
    }

    /// The call's time is over at `deadline`, if ever.
    pub(super) fn stamp(&mut self, slot: u32, deadline: Option<Instant>) {
        let call = &mut self.slots[slot as usize];
        if call.deadline == Deadline::Unstamped {
            self.unstamped -= 1;
        }
        call.deadline = deadline.map_or(Deadline::Never, Deadline::At);
        if let Some(deadline) = deadline {
            self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        }
    }

    /// Sends what is staged.
    pub(super) fn flush(&mut self) -> Result<(), CallError> {
        self.staged = false;
        self.link.tx_flush().map_err(CallError::link)
    }

    /// Takes one message from the link, if there is one, and looks at the clock now and then. What is staged waits for
    /// messages at hand, whose answers may make room for more calls.
    pub(super) fn poll(&mut self) -> Result<bool, CallError> {
        if self.staged && !self.link.rx_has_more() {
            self.flush()?;
        }
        self.move_out();
        let arrived = self.link.rx_poll().map_err(CallError::link)?;
        if self.staged && arrived.is_none() {
            self.flush()?;
        }
        if let Some(rx) = arrived {
            self.accept(rx);
        }
        self.polls += if arrived.is_some() { 1 } else { VAIN_POLL };
        if self.polls >= POLLS_PER_CLOCK {
            self.polls = 0;
            self.expire(Instant::now());
        }
        Ok(arrived.is_some())
    }

    pub(super) fn is_over(&self, slot: u32) -> bool {
        matches!(self.slots[slot as usize].state, State::Over(_))
    }

    /// What came of the call, once it is over. The slot stays taken.
    pub(super) fn outcome(&self, slot: u32) -> Option<Result<Reply, CallError>> {
        match &self.slots[slot as usize].state {
            State::Over(outcome) => Some(outcome.clone()),
            _ => None,
        }
    }

    /// Copies results out, from wherever they are. The range lies in them.
    pub(super) fn read(&self, slot: u32, offset: usize, out: &mut [u8]) {
        let State::Over(Ok(reply)) = &self.slots[slot as usize].state else { return };
        match reply.rx {
            Some(rx) => self.link.rx_slot(rx).copy_to(HEADER_LEN + offset, out),
            None => {
                let start = slot as usize * self.room + offset;
                out.copy_from_slice(&self.moved.bytes()[start..start + out.len()]);
            }
        }
    }

    /// Nobody holds the slot any more.
    pub(super) fn release(&mut self, slot: u32) {
        let id = self.slots[slot as usize].id;
        match self.slots[slot as usize].state {
            // It was never sent: the next call takes its place, so that no hole is left in the ring's order.
            State::Acquired if self.next_id == id.wrapping_add(1) => {
                self.next_id = id;
                self.free(slot);
            }
            State::InFlight => self.slots[slot as usize].abandoned = true,
            _ => self.free(slot),
        }
    }

    fn free(&mut self, slot: u32) {
        self.slots[slot as usize].state = State::Free;
        self.taken -= 1;
        if self.in_ring == Some(slot) {
            self.in_ring = None;
        }
    }

    fn accept(&mut self, rx: u32) {
        let Ok(response) = Response::parse(&self.link.rx_slot(rx).read::<HEADER_LEN>(0)) else {
            return self.stats.count(Event::Malformed);
        };
        let slot = self.slot_of(response.request_id);
        let call = &self.slots[slot as usize];
        if call.id != response.request_id || !matches!(call.state, State::InFlight) {
            return self.stats.count(self.misfit(response.request_id));
        }
        let outcome = check(&response, self.room, call.capacity);
        self.stats.count(if outcome.is_ok() { Event::Answer } else { Event::Error });
        self.finish(
            slot,
            outcome.map(|len| Reply { len, ptp_timestamp: response.ptp_timestamp, rx: Some(rx) }),
        );
    }

    /// Why an answer belongs to no call in flight.
    fn misfit(&self, id: u32) -> Event {
        let age = self.next_id.wrapping_sub(id);
        if (1..=u32::MAX / 2).contains(&age) { Event::Late } else { Event::Malformed }
    }

    fn finish(&mut self, slot: u32, outcome: Result<Reply, CallError>) {
        let call = &mut self.slots[slot as usize];
        if call.deadline == Deadline::Unstamped {
            self.unstamped -= 1;
        }
        if call.abandoned {
            return self.free(slot);
        }
        if matches!(outcome, Ok(Reply { len: 1.., .. })) {
            self.in_ring = Some(slot);
        }
        call.state = State::Over(outcome);
    }

    /// What is polled next may be written over unread results.
    fn move_out(&mut self) {
        let Some(slot) = self.in_ring.take() else { return };
        let State::Over(Ok(reply)) = &mut self.slots[slot as usize].state else { return };
        let Some(rx) = reply.rx.take() else { return };
        let start = slot as usize * self.room;
        let place = &mut self.moved.bytes_mut()[start..start + reply.len];
        self.link.rx_slot(rx).copy_to(HEADER_LEN, place);
    }

    fn expire(&mut self, now: Instant) {
        if self.unstamped == 0 && self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.next_deadline = None;
        for slot in 0..self.slots.len() {
            let call = &mut self.slots[slot];
            if !matches!(call.state, State::InFlight) {
                continue;
            }
            if call.deadline == Deadline::Unstamped {
                call.deadline = now.checked_add(call.timeout).map_or(Deadline::Never, Deadline::At);
                self.unstamped -= 1;
            }
            let Deadline::At(deadline) = call.deadline else { continue };
            if deadline <= now {
                let expired = CallError::Timeout { request_id: call.id, timeout: call.timeout };
                self.stats.count(Event::Timeout);
                self.finish(self.slot_of(self.slots[slot].id), Err(expired));
            } else if self.next_deadline.is_none_or(|next| deadline < next) {
                self.next_deadline = Some(deadline);
            }
        }
    }

    fn slot_of(&self, id: u32) -> u32 {
        slot_of(id, self.mask())
    }

    fn mask(&self) -> u32 {
        self.link.geometry().num_pages() - 1
    }
}

impl Slot {
    fn new(frame_size: usize) -> Self {
        Self {
            state: State::Free,
            id: 0,
            abandoned: false,
            capacity: 0,
            timeout: Duration::ZERO,
            deadline: Deadline::Never,
            dirty: frame_size,
        }
    }
}

/// Ids count up from 1, and the first has slot 0. They wrap into the slots without a seam.
fn slot_of(id: u32, mask: u32) -> u32 {
    id.wrapping_sub(1) & mask
}

/// The length of the results, if the answer has some and they may be read.
fn check(response: &Response, room: usize, capacity: u32) -> Result<usize, CallError> {
    if !response.status.is_success() {
        return Err(CallError::Remote { request_id: response.request_id, status: response.status });
    }
    let len = response.result_len;
    let allowed = usize::min(room, capacity as usize);
    match usize::try_from(len) {
        Ok(bytes) if bytes <= allowed => Ok(bytes),
        _ => Err(CallError::ResponseTooLarge { len, capacity: u32::try_from(allowed).unwrap_or(u32::MAX) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_each_other_across_the_wrap_of_ids() {
        assert_eq!([1, 2, 3, 4, 5].map(|id| slot_of(id, 3)), [0, 1, 2, 3, 0]);
        assert_eq!([u32::MAX - 1, u32::MAX, 0, 1].map(|id| slot_of(id, 3)), [1, 2, 3, 0]);
        assert_eq!([u32::MAX, 0, 1].map(|id| slot_of(id, 0)), [0; 3]);
    }
}
