//! The transport's side of two real rings, and frames to put into them.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use std::convert::Infallible;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use roce_core::Line;
use roce_dispatch::rpc::{HEADER_LEN, Request, Response, Status, function_id};
use roce_dispatch::{DispatchCounts, DispatchError, FunctionTable, RingLoop, UnifiedLink};
use roce_ring::{Consumer, Geometry, Lines, MemoryOptions, Producer, Ring, SlotBytes};

/// Long enough for any machine; only a failing test waits that long.
pub const CEILING: Duration = Duration::from_secs(20);

/// Enough polls for a loop to look behind a hole anywhere in a small ring.
pub const POLLS_PAST_A_HOLE: usize = 64;

/// What a transport does with the rings: fills RX slots, empties TX slots.
pub struct Wire {
    pub rx: Producer,
    pub tx: Consumer,
    pub geometry: Geometry,
}

/// One response as it would go on the wire.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub slot: u32,
    pub header: Response,
    pub frame: Vec<u8>,
}

impl Answer {
    pub fn results(&self) -> &[u8] {
        self.header.payload(&self.frame).expect("the results fit the frame")
    }

    /// No byte after the results may go out.
    pub fn assert_clean_tail(&self) {
        let end = HEADER_LEN + self.header.result_len as usize;
        assert!(self.frame[end..].iter().all(|&b| b == 0), "stale bytes behind {end}: {:?}", self.frame);
    }
}

pub fn rings(geometry: Geometry) -> (Wire, Consumer, Producer) {
    let ring = || Ring::allocate(geometry, MemoryOptions::default()).expect("memory for a ring");
    let (rx, dispatcher_rx) = ring().split().expect("first split");
    let (dispatcher_tx, tx) = ring().split().expect("first split");
    (Wire { rx, tx, geometry }, dispatcher_rx, dispatcher_tx)
}

/// Two real rings as a link: a flag stands for a completion.
pub struct RingLink {
    pub rx: Consumer,
    pub tx: Producer,
    pub lines: Lines,
    pub open: Arc<AtomicBool>,
}

impl RingLink {
    pub fn new(rx: Consumer, tx: Producer) -> Self {
        let lines = Lines::new(rx.ring(), tx.ring());
        Self { rx, tx, lines, open: Arc::new(AtomicBool::new(true)) }
    }
}

impl UnifiedLink for RingLink {
    type Error = Infallible;

    fn geometry(&self) -> Geometry {
        self.rx.ring().geometry()
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    fn rx_poll(&mut self) -> Result<Option<u32>, Infallible> {
        let slot = self.rx.next_published().filter(|&slot| self.tx.is_free(slot));
        if let Some(slot) = slot {
            self.rx.claim(slot);
        }
        Ok(slot)
    }

    fn tx_publish(&mut self, slot: u32) -> Result<bool, Infallible> {
        self.tx.publish(slot);
        Ok(true)
    }

    fn rx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.rx.ring().slot(slot)
    }

    fn tx_slot(&self, slot: u32) -> SlotBytes<'_> {
        self.tx.slot(slot)
    }

    fn lines(&self, slot: u32) -> Option<(Line<'_>, Line<'_>)> {
        self.lines.of(slot)
    }
}

pub fn link(geometry: Geometry) -> (Wire, RingLink) {
    let (wire, rx, tx) = rings(geometry);
    (wire, RingLink::new(rx, tx))
}

pub fn geometry(pages: u32, page: u32, frame: u32) -> Geometry {
    Geometry::new(pages, page, frame).expect("a valid shape")
}

pub fn serve(geometry: Geometry, table: FunctionTable) -> (Wire, RingLoop) {
    let (wire, rx, tx) = rings(geometry);
    (wire, RingLoop::new(rx, tx, table).expect("rings of one shape"))
}

pub fn request(name: &str, request_id: u32, args: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN + args.len()];
    let header = Request {
        function_id: function_id(name),
        arg_len: u32::try_from(args.len()).expect("short arguments"),
        request_id,
        ptp_timestamp: timestamp(request_id),
    };
    header.emit(&mut frame);
    frame[HEADER_LEN..].copy_from_slice(args);
    frame
}

/// A timestamp that tells requests apart.
pub fn timestamp(request_id: u32) -> u64 {
    u64::from(request_id) << 32 | 0x5A5A_5A5A
}

/// An argument byte that tells neighbouring requests apart.
pub fn byte(id: u32) -> u8 {
    id.to_le_bytes()[0]
}

impl Wire {
    /// Puts a message into its slot and flags it, whether or not the slot is free.
    pub fn deliver(&self, slot: u32, frame: &[u8]) {
        self.rx.slot(slot).copy_from(0, frame);
        self.rx.publish(slot);
    }

    /// Takes the response out of `slot`, if there is one.
    pub fn take(&mut self, slot: u32) -> Option<Answer> {
        let mut frame = vec![0; self.geometry.frame_size() as usize];
        self.tx.peek(slot)?.bytes().copy_to(0, &mut frame);
        self.tx.claim(slot);
        let header = Response::parse(&frame).expect("a response");
        Some(Answer { slot, header, frame })
    }

    pub fn expect(&mut self, slot: u32) -> Answer {
        self.take(slot).unwrap_or_else(|| panic!("no response in slot {slot}"))
    }

    /// Delivers one message, polls, and takes the answer out of the same slot.
    pub fn call(&mut self, dispatcher: &mut RingLoop, slot: u32, frame: &[u8]) -> Answer {
        self.deliver(slot, frame);
        assert_eq!(dispatcher.poll(), 1);
        assert!(self.rx.is_free(slot), "the request's slot was not released");
        self.expect(slot)
    }
}

/// Has a request overwritten by another one while the function "echo" serves it, which calls what it is registered with
/// at the argument 1 and answers with its argument: the newer one alone is answered.
pub fn assert_overwritten_is_not_answered(
    register: impl FnOnce(&mut FunctionTable, Box<dyn Fn() + Send>) -> Result<(), DispatchError>,
) {
    let (wire, rx, tx) = rings(geometry(4, 64, 64));
    let wire = Arc::new(Mutex::new(wire));
    let peer = Arc::clone(&wire);
    let overwrite = move || {
        let wire = peer.lock().expect("one thread");
        wire.rx.slot(0).copy_from(0, &request("echo", 2, &[2]));
        wire.rx.note_overrun(0);
    };
    let mut table = FunctionTable::new();
    register(&mut table, Box::new(overwrite)).expect("an empty table");
    let mut dispatcher = RingLoop::new(rx, tx, table).expect("rings of one shape");

    wire.lock().expect("one thread").deliver(0, &request("echo", 1, &[1]));
    assert_eq!(dispatcher.poll(), 1);
    let answer = wire.lock().expect("one thread").expect(0);
    assert_answers(&answer, 2, Status::SUCCESS, &[2]);
    let expected = DispatchCounts { requests: 2, responses: 1, overwritten: 1, ..DispatchCounts::default() };
    assert_eq!(counts(&dispatcher), expected);
}

pub fn assert_answers(answer: &Answer, request_id: u32, status: Status, results: &[u8]) {
    assert_eq!(answer.header.status, status);
    assert_eq!(answer.header.request_id, request_id);
    assert_eq!(answer.header.ptp_timestamp, timestamp(request_id));
    assert_eq!(answer.results(), results);
    answer.assert_clean_tail();
}

pub fn increment(args: &[u8], result: &mut [u8]) -> Result<usize, roce_dispatch::rpc::HandlerError> {
    for (out, byte) in result.iter_mut().zip(args) {
        *out = byte.wrapping_add(1);
    }
    Ok(args.len())
}

pub fn counts(dispatcher: &RingLoop) -> DispatchCounts {
    dispatcher.stats().snapshot()
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + CEILING;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::yield_now();
    }
}

/// Why a link is of no more use.
#[derive(Debug, PartialEq, Eq)]
pub struct LinkDown;

impl fmt::Display for LinkDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("link down")
    }
}

impl std::error::Error for LinkDown {}

/// The two slots that a C handler is given.
///
/// # Safety
/// Both have `slot_size` bytes, which nobody else uses for as long as the slices live.
pub unsafe fn slots<'a>(
    rx_slot: *const c_void,
    tx_slot: *mut c_void,
    slot_size: usize,
) -> (&'a [u8], &'a mut [u8]) {
    // SAFETY: the caller promises it.
    unsafe {
        (
            std::slice::from_raw_parts(rx_slot.cast(), slot_size),
            std::slice::from_raw_parts_mut(tx_slot.cast(), slot_size),
        )
    }
}

/// What a C author would write: adds one to each argument byte.
pub unsafe extern "C" fn c_increment(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize) {
    // SAFETY: the dispatcher passes `slot_size` bytes at both, and nobody else uses them during the call.
    let (rx, tx) = unsafe { slots(rx_slot, tx_slot, slot_size) };
    let request = Request::parse(rx).expect("the dispatcher checked it");
    let args = request.payload(rx).expect("the dispatcher checked it");
    let end = HEADER_LEN + args.len();
    assert!(rx[end..].iter().all(|&b| b == 0), "bytes of an earlier request");
    let response = Response {
        status: Status::SUCCESS,
        result_len: request.arg_len,
        request_id: request.request_id,
        ptp_timestamp: request.ptp_timestamp,
    };
    response.emit(tx);
    for (out, byte) in tx[HEADER_LEN..end].iter_mut().zip(args) {
        *out = byte.wrapping_add(1);
    }
}
