//! A caller for several threads: one thread of its own drives the link, the others hand it jobs.
//!
//! Everything is made at the start, one job per slot of the ring: a call takes one from a queue, fills it, puts it
//! into another, and waits until it comes back. So there is no allocation and no lock on the way.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use roce_transport::{Backoff, SpinPolicy};

use super::{CallError, CallStats, Caller, Dispatched, Frame, Function};
use crate::UnifiedLink;

/// Calls from any thread. Clones share the link; the last one that is dropped ends its thread.
///
/// A waiting call polls, as everything here does: use it from threads that may.
#[derive(Clone)]
pub struct CallerHandle(Arc<Driver>);

struct Driver {
    desk: Arc<Desk>,
    room: usize,
    spin: SpinPolicy,
    stats: CallStats,
    thread: Option<JoinHandle<()>>,
}

/// Where jobs change hands.
struct Desk {
    free: ArrayQueue<Box<Job>>,
    submitted: ArrayQueue<Box<Job>>,
    /// By the job's index, so that each is found by whoever submitted it.
    done: Box<[ArrayQueue<Box<Job>>]>,
    /// No handle is left.
    stop: AtomicBool,
    /// The thread takes no more jobs.
    is_closed: AtomicBool,
}

struct Job {
    index: usize,
    function_id: u32,
    timeout: Duration,
    args: Vec<u8>,
    capacity: usize,
    results: Vec<u8>,
    outcome: Result<(), CallError>,
}

impl<L: UnifiedLink + Send + 'static> Caller<L> {
    /// Gives the caller to a thread of its own and returns a handle for as many threads as you like.
    ///
    /// # Errors
    /// What the system says when it can start no thread.
    pub fn into_handle(self) -> std::io::Result<CallerHandle> {
        let (room, spin, stats) = (self.room(), self.spin, self.stats());
        let desk = Arc::new(Desk::new(self.geometry.num_pages() as usize, room));
        let thread = {
            let desk = Arc::clone(&desk);
            thread::Builder::new().name("roce-caller".to_owned()).spawn(move || desk.drive(&self))?
        };
        Ok(CallerHandle(Arc::new(Driver { desk, room, spin, stats, thread: Some(thread) })))
    }
}

impl CallerHandle {
    /// Calls `function` with these bytes as arguments, and waits. The results go to the start of `results`, which is
    /// also their limit; returns how many bytes they are. Of a schema the two lengths are checked.
    ///
    /// While all slots are taken by calls of other threads it waits for one of them, at most `timeout`.
    ///
    /// # Errors
    /// As [`Frame::dispatch`] and [`Frame::wait`]; [`CallError::Busy`] after a wait for a slot in vain.
    pub fn call(
        &self,
        function: &Function<'_>,
        args: &[u8],
        results: &mut [u8],
        timeout: Duration,
    ) -> Result<usize, CallError> {
        let Driver { desk, room, spin, .. } = &*self.0;
        if args.len() > *room {
            return Err(CallError::TooLong { len: args.len(), room: *room });
        }
        if let Some(schema) = function.schema {
            check_length("argument", args.len(), schema.arg_len())?;
        }
        let mut job = desk.free_job(*spin, timeout)?;
        job.function_id = function.id;
        job.timeout = timeout;
        job.capacity = results.len().min(*room);
        job.args.clear();
        job.args.extend_from_slice(args);

        let job = desk.run(job, *spin)?;
        let outcome = job.outcome.clone();
        let len = job.results.len();
        results[..len].copy_from_slice(&job.results);
        // There is room: it came out of there.
        let _ = desk.free.push(job);
        outcome?;
        if let Some(schema) = function.schema {
            check_length("result", len, schema.result_len())?;
        }
        Ok(len)
    }

    /// Bytes of arguments, and of results, that a frame has room for.
    pub fn room(&self) -> usize {
        self.0.room
    }

    /// A handle on the counters.
    pub fn stats(&self) -> CallStats {
        self.0.stats.clone()
    }
}

fn check_length(what: &'static str, len: usize, expected: u64) -> Result<(), CallError> {
    if len as u64 == expected { Ok(()) } else { Err(CallError::Length { what, len, expected }) }
}

impl fmt::Debug for CallerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerHandle").field("stats", &self.0.stats).finish_non_exhaustive()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it was seen by whoever called.
            let _ = thread.join();
        }
    }
}

/// Says that no job comes back any more, however the thread ends.
struct CloseOnExit<'a>(&'a Desk);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release); // pairs with `run`
    }
}

impl Desk {
    fn new(jobs: usize, room: usize) -> Self {
        let desk = Self {
            free: ArrayQueue::new(jobs),
            submitted: ArrayQueue::new(jobs),
            done: (0..jobs).map(|_| ArrayQueue::new(1)).collect(),
            stop: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        };
        for index in 0..jobs {
            // As many as the queue has places.
            let _ = desk.free.push(Box::new(Job::new(index, room)));
        }
        desk
    }

    fn free_job(&self, spin: SpinPolicy, timeout: Duration) -> Result<Box<Job>, CallError> {
        let mut backoff = Backoff::new(spin);
        let mut since = None;
        loop {
            if let Some(job) = self.free.pop() {
                return Ok(job);
            }
            if self.is_closed.load(Ordering::Acquire) {
                return Err(CallError::Closed);
            }
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() >= timeout {
                return Err(CallError::Busy { slots: u32::try_from(self.done.len()).unwrap_or(u32::MAX) });
            }
            backoff.idle();
        }
    }

    /// Hands a job to the thread and waits until it is back.
    fn run(&self, job: Box<Job>, spin: SpinPolicy) -> Result<Box<Job>, CallError> {
        let index = job.index;
        // There is room: as many places as jobs.
        let _ = self.submitted.push(job);
        let mut backoff = Backoff::new(spin);
        loop {
            let is_closed = self.is_closed.load(Ordering::Acquire);
            if let Some(job) = self.done[index].pop() {
                return Ok(job);
            }
            if is_closed {
                return Err(CallError::Closed);
            }
            backoff.idle();
        }
    }

    /// The thread's body.
    fn drive<L: UnifiedLink>(&self, caller: &Caller<L>) {
        let _close = CloseOnExit(self);
        let mut running = Running::new(self);
        let mut backoff = Backoff::new(caller.spin);
        while !self.stop.load(Ordering::Relaxed) {
            let taken = running.take(caller);
            match caller.poll() {
                Ok(0) if taken == 0 && caller.calls.borrow().is_open() => backoff.idle(),
                Ok(0) if taken == 0 => return running.fail_all(&CallError::Closed),
                Ok(_) => backoff.reset(),
                Err(error) => return running.fail_all(&error),
            }
            running.give_back();
        }
    }

    fn give_back(&self, job: Box<Job>) {
        let place = &self.done[job.index];
        // It is empty: this is the only job of that index.
        let _ = place.push(job);
    }
}

/// The calls of the thread, each with its job.
struct Running<'c, L: UnifiedLink> {
    desk: &'c Desk,
    calls: Vec<(Frame<'c, L, Dispatched>, Box<Job>)>,
    /// Jobs for which the link had no room yet, oldest first, and since when.
    waiting: VecDeque<(Box<Job>, Instant)>,
}

impl<'c, L: UnifiedLink> Running<'c, L> {
    fn new(desk: &'c Desk) -> Self {
        let jobs = desk.done.len();
        Self { desk, calls: Vec::with_capacity(jobs), waiting: VecDeque::with_capacity(jobs) }
    }

    /// Starts what was submitted, and says how many that were. They leave together.
    fn take(&mut self, caller: &'c Caller<L>) -> usize {
        let mut taken = 0;
        // No slot may be free where a call was given up that is not answered yet: the rest has to wait.
        while caller.in_use() < caller.geometry.num_pages()
            && let Some((mut job, since)) = self.next_job()
        {
            match job.start(caller, since) {
                Ok(Some(frame)) => self.calls.push((frame, job)),
                Ok(None) => {
                    self.waiting.push_front((job, since.unwrap_or_else(Instant::now)));
                    break;
                }
                Err(error) => {
                    job.fail(error);
                    self.desk.give_back(job);
                }
            }
            taken += 1;
        }
        let has_slots = caller.in_use() < caller.geometry.num_pages();
        if !self.waiting.is_empty() || !has_slots && !self.desk.submitted.is_empty() {
            self.expire(caller);
        }
        taken
    }

    /// And since when it waits for room, if it does.
    fn next_job(&mut self) -> Option<(Box<Job>, Option<Instant>)> {
        match self.waiting.pop_front() {
            Some((job, since)) => Some((job, Some(since))),
            None => self.desk.submitted.pop().map(|job| (job, None)),
        }
    }

    /// Fails the jobs whose time is over, those behind the one that has no room or no slot included.
    #[cold]
    fn expire(&mut self, caller: &Caller<L>) {
        let now = Instant::now();
        while let Some(job) = self.desk.submitted.pop() {
            self.waiting.push_back((job, now));
        }
        for _ in 0..self.waiting.len() {
            let Some((mut job, since)) = self.waiting.pop_front() else { return };
            if now.duration_since(since) < job.timeout {
                self.waiting.push_back((job, since));
            } else {
                job.fail(caller.calls.borrow().no_room(job.timeout));
                self.desk.give_back(job);
            }
        }
    }

    fn give_back(&mut self) {
        let mut at = 0;
        while at < self.calls.len() {
            if self.calls[at].0.is_over() {
                let (frame, mut job) = self.calls.swap_remove(at);
                job.finish(frame);
                self.desk.give_back(job);
            } else {
                at += 1;
            }
        }
    }

    fn fail_all(&mut self, error: &CallError) {
        for (_, mut job) in self.calls.drain(..) {
            job.fail(error.clone());
            self.desk.give_back(job);
        }
        while let Some((mut job, _)) = self.next_job() {
            job.fail(error.clone());
            self.desk.give_back(job);
        }
    }
}

impl Job {
    fn new(index: usize, room: usize) -> Self {
        Self {
            index,
            function_id: 0,
            timeout: Duration::ZERO,
            args: Vec::with_capacity(room),
            capacity: 0,
            results: Vec::with_capacity(room),
            outcome: Ok(()),
        }
    }

    /// `None` when the link has no room now. A call that waited for room since then has the rest of its time.
    fn start<'c, L: UnifiedLink>(
        &self,
        caller: &'c Caller<L>,
        since: Option<Instant>,
    ) -> Result<Option<Frame<'c, L, Dispatched>>, CallError> {
        let mut frame = caller.acquire(&Function::from_id(self.function_id))?;
        frame.put(&self.args[..])?.capacity(self.capacity)?;
        let started = frame.try_stage(self.timeout)?;
        if let (Some(frame), Some(since)) = (&started, since) {
            caller.calls.borrow_mut().stamp(frame.slot(), since.checked_add(self.timeout));
        }
        Ok(started)
    }

    fn finish<L: UnifiedLink>(&mut self, frame: Frame<'_, L, Dispatched>) {
        let results = &mut self.results;
        results.clear();
        self.outcome = frame.wait().and_then(|answer| {
            results.resize(answer.len(), 0);
            answer.copy_to(0, results)
        });
    }

    fn fail(&mut self, error: CallError) {
        self.results.clear();
        self.outcome = Err(error);
    }
}
