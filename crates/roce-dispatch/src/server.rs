//! One request: out of its slot, through its handler, into the slot that answers it. Both loops serve this way.

#![forbid(unsafe_code)]

use roce_core::Line;
use roce_ring::{Geometry, SlotBytes};
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::in_place::{Arguments, InPlaceFunctions, InPlaceHandler, Results};
use crate::raw::RawFunction;
use crate::rpc::{HEADER_LEN, HEADER_WORDS, Request, Response, Status, first_half};
use crate::stats::{DispatchStats, Event};
use crate::table::{Function, Handler, call, call_in_place};
use crate::{DispatchError, FunctionTable};

const WORD: usize = size_of::<u64>();
/// Bytes of arguments or results that lie in the first line of a frame.
const SHORT: usize = Line::WORDS * WORD - HEADER_LEN;

/// The functions, and private copies of the request and the response in hand.
pub(crate) struct Server {
    table: FunctionTable,
    /// The first line of a short request, its header left out. What follows the arguments is none of theirs.
    short: [u64; Line::WORDS],
    /// An RX slot's copy, its header left out but for a raw handler. Zero past `filled`.
    request: Buffer,
    filled: usize,
    /// One frame, its header left out.
    response: Buffer,
    /// For each TX slot, how many of its first bytes may be other than zero.
    dirty: Box<[usize]>,
    stats: DispatchStats,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The message is no request.
    NoRequest,
    /// It may not be answered now.
    Held,
    /// A whole response is in the TX slot.
    Answered,
}

/// Why there are no results in the response buffer.
enum Refusal {
    /// The handler wrote the whole response into the TX slot itself.
    Written(Status),
    /// There are none.
    Status(Status),
}

impl Server {
    pub(crate) fn new(rx: Geometry, tx: Geometry, table: FunctionTable) -> Result<Self, DispatchError> {
        if rx.num_pages() != tx.num_pages() {
            return Err(DispatchError::SlotCounts { rx: rx.num_pages(), tx: tx.num_pages() });
        }
        if let Some(frame_size) = [rx, tx].map(Geometry::frame_size).into_iter().find(|&f| f < MIN_FRAME) {
            return Err(DispatchError::FrameTooSmall { frame_size });
        }
        let frame_size = tx.frame_size() as usize;
        Ok(Self {
            table,
            short: [0; Line::WORDS],
            request: Buffer::new(rx.page_size() as usize),
            filled: HEADER_LEN,
            response: Buffer::new(frame_size),
            dirty: vec![frame_size; tx.num_pages() as usize].into_boxed_slice(),
            stats: DispatchStats::default(),
        })
    }

    #[inline]
    pub(crate) fn stats(&self) -> &DispatchStats {
        &self.stats
    }

    /// Bytes of a response.
    fn frame_size(&self) -> usize {
        self.response.bytes().len()
    }

    /// Serves the request in `slot` of the RX ring, if it may be answered, and leaves a whole response in that of the TX
    /// ring.
    #[inline]
    pub(crate) fn exchange<'a>(
        &mut self,
        slot: u32,
        lines: impl Fn() -> Option<(Line<'a>, Line<'a>)>,
        slots: impl Fn() -> (SlotBytes<'a>, SlotBytes<'a>),
        may_answer: impl FnOnce() -> bool,
    ) -> Outcome {
        let work = lines().and_then(|(from, to)| Work::find(&mut self.table.in_place, from, to));
        let Some(work) = work else {
            return self.exchange_copies(slot, lines, slots, may_answer);
        };
        if !may_answer() {
            return Outcome::Held;
        }
        self.stats.count(Event::Request);
        match work.run() {
            Ok(len) => self.clear(slot, HEADER_LEN + len, || slots().1),
            Err(status) => self.refuse_in_place(status, slot, slots().1),
        }
        Outcome::Answered
    }

    /// As [`exchange`](Self::exchange), for functions that see copies: the request is copied out before it is known
    /// whether it may be answered. A short request for a Rust function that has a short answer, the usual case, is dealt
    /// with here, by the word.
    #[inline]
    fn exchange_copies<'a>(
        &mut self,
        slot: u32,
        lines: impl Fn() -> Option<(Line<'a>, Line<'a>)>,
        slots: impl Fn() -> (SlotBytes<'a>, SlotBytes<'a>),
        may_answer: impl FnOnce() -> bool,
    ) -> Outcome {
        let Some((from, to)) = lines() else {
            return self.exchange_long(slot, slots(), may_answer);
        };
        let header = [from.load(0), from.load(1), from.load(2)];
        let Some(request) = Request::from_words(header) else { return Outcome::NoRequest };
        let len = request.arg_len as usize;
        if len > SHORT {
            return self.exchange_long(slot, slots(), may_answer);
        }
        for at in HEADER_WORDS..Line::WORDS {
            self.short[at] = from.load(at);
        }
        if !may_answer() {
            return Outcome::Held;
        }
        self.stats.count(Event::Request);
        let Some(Function { handler: Handler::Rust(handler), .. }) =
            self.table.find(request.function_id).filter(|function| function.accepts(request.arg_len))
        else {
            return self.answer_else(request, slot, slots());
        };
        let args = &self.short.as_bytes()[HEADER_LEN..HEADER_LEN + len];
        let results = call(handler, args, self.response.cleared_room());
        let Ok(len @ 0..=SHORT) = results else {
            return self.finish(request, results.map_err(Refusal::Status), slot, slots().1);
        };
        self.write_short(Response::success(&request, len).to_words(), len, to);
        self.clear(slot, HEADER_LEN + len, || slots().1);
        Outcome::Answered
    }

    /// A response with short results. What is over of their last word becomes zero, as all behind it.
    #[inline(always)] // into its caller
    fn write_short(&self, header: [u64; HEADER_WORDS], len: usize, to: Line<'_>) {
        for (at, word) in header.into_iter().enumerate() {
            to.store(at, word);
        }
        let results = self.response.first_line();
        for (at, &word) in (HEADER_WORDS..).zip(&results[HEADER_WORDS..]) {
            if len < (at + 1 - HEADER_WORDS) * WORD {
                break;
            }
            to.store(at, word);
        }
        let rest = len % WORD;
        if rest > 0 {
            let last = HEADER_WORDS + len / WORD;
            to.store(last, u64::from_le(results[last].to_le() & ((1 << (8 * rest)) - 1)));
        }
    }

    #[inline(never)] // to keep the other way short
    fn exchange_long(
        &mut self,
        slot: u32,
        (rx, tx): (SlotBytes<'_>, SlotBytes<'_>),
        may_answer: impl FnOnce() -> bool,
    ) -> Outcome {
        let Ok(request) = Request::parse(&rx.read::<HEADER_LEN>(0)) else { return Outcome::NoRequest };
        // Arguments that are not all there will be refused.
        let end = HEADER_LEN + request.arg_len as usize;
        if let Some(args) = self.request.bytes_mut().get_mut(HEADER_LEN..end) {
            rx.copy_to(HEADER_LEN, args);
            self.filled = self.filled.max(end);
        }
        if !may_answer() {
            return Outcome::Held;
        }
        self.stats.count(Event::Request);
        self.answer(request, slot, (rx, tx))
    }

    /// Answers a short request.
    #[inline(never)] // to keep the other way short
    fn answer_else(&mut self, request: Request, slot: u32, slots: (SlotBytes<'_>, SlotBytes<'_>)) -> Outcome {
        let end = HEADER_LEN + request.arg_len as usize;
        self.request.bytes_mut()[HEADER_LEN..end].copy_from_slice(&self.short.as_bytes()[HEADER_LEN..end]);
        self.filled = self.filled.max(end);
        self.answer(request, slot, slots)
    }

    fn answer(&mut self, request: Request, slot: u32, slots: (SlotBytes<'_>, SlotBytes<'_>)) -> Outcome {
        let results = self.serve(&request, slot, slots);
        self.finish(request, results, slot, slots.1)
    }

    /// The length of the results.
    fn serve(
        &mut self,
        request: &Request,
        slot: u32,
        (rx, tx): (SlotBytes<'_>, SlotBytes<'_>),
    ) -> Result<usize, Refusal> {
        let Some(function) = self.table.find(request.function_id) else {
            return Err(Refusal::Status(Status::UNKNOWN_FUNCTION));
        };
        let args = match request.payload(self.request.bytes()) {
            Ok(args) if function.accepts(request.arg_len) => args,
            _ => return Err(Refusal::Status(Status::BAD_LENGTH)),
        };
        match &mut function.handler {
            Handler::Rust(handler) => {
                call(handler, args, self.response.cleared_room()).map_err(Refusal::Status)
            }
            Handler::InPlace => Err(self.serve_in_place(request, slot, (rx, tx))),
            Handler::Raw(handler) => {
                let handler = *handler;
                Err(self.serve_raw(handler, request, slot, tx))
            }
        }
    }

    /// For slots without lines, and for a function that is not found at once.
    fn serve_in_place(
        &mut self,
        request: &Request,
        slot: u32,
        (rx, tx): (SlotBytes<'_>, SlotBytes<'_>),
    ) -> Refusal {
        let frame_size = self.frame_size();
        let parts = (
            rx.memory().part(HEADER_LEN as u64, request.arg_len as usize),
            tx.memory().part(HEADER_LEN as u64, frame_size - HEADER_LEN),
        );
        let (Some(handler), (Ok(args), Ok(room))) = (self.table.in_place.find(request.function_id), parts)
        else {
            return Refusal::Status(Status::BAD_LENGTH);
        };
        self.dirty[slot as usize] = frame_size;
        match call_in_place(handler, Arguments::new(args), Results::new(room)) {
            Err(status) => Refusal::Status(status),
            Ok(len) => {
                self.put_header(Response::success(request, len), slot, tx);
                Refusal::Written(Status::SUCCESS)
            }
        }
    }

    /// The slot has a header already, and perhaps results.
    #[cold]
    #[inline(never)] // to keep the other way short
    fn refuse_in_place(&mut self, status: Status, slot: u32, tx: SlotBytes<'_>) {
        self.stats.count_status(status);
        // It was written before the call, so it is one, unless somebody scribbles in our slot.
        let answered = Response::parse(&tx.read::<HEADER_LEN>(0)).unwrap_or_default();
        self.dirty[slot as usize] = self.frame_size();
        self.put_header(Response { status, result_len: 0, ..answered }, slot, tx);
    }

    /// Completes a response whose results are in their place, or that has none.
    fn put_header(&mut self, response: Response, slot: u32, tx: SlotBytes<'_>) {
        let mut header = [0; HEADER_LEN];
        response.emit(&mut header);
        tx.copy_from(0, &header);
        self.clear(slot, HEADER_LEN + response.result_len as usize, || tx);
    }

    fn serve_raw(
        &mut self,
        handler: RawFunction,
        request: &Request,
        slot: u32,
        tx: SlotBytes<'_>,
    ) -> Refusal {
        let end = HEADER_LEN + request.arg_len as usize;
        let buffer = self.request.bytes_mut();
        request.emit(buffer);
        buffer[end..self.filled].fill(0);
        self.filled = end;
        self.clear(slot, 0, || tx);
        self.dirty[slot as usize] = self.frame_size();
        handler.call(self.request.bytes(), tx);
        self.check_written(tx)
    }

    /// Whether a raw handler left a response that a frame holds.
    fn check_written(&self, tx: SlotBytes<'_>) -> Refusal {
        let room = self.frame_size() - HEADER_LEN;
        match Response::parse(&tx.read::<HEADER_LEN>(0)) {
            Err(_) => Refusal::Status(Status::NO_RESPONSE),
            Ok(response) if response.result_len as usize > room => Refusal::Status(Status::RESULT_TOO_LARGE),
            Ok(response) => Refusal::Written(response.status),
        }
    }

    #[inline(never)] // to keep the other way short
    fn finish(
        &mut self,
        request: Request,
        results: Result<usize, Refusal>,
        slot: u32,
        tx: SlotBytes<'_>,
    ) -> Outcome {
        let response = match results {
            Ok(len) => Response::success(&request, len),
            Err(Refusal::Written(status)) => {
                self.stats.count_status(status);
                return Outcome::Answered;
            }
            Err(Refusal::Status(status)) => {
                self.stats.count_status(status);
                Response { status, ..Response::success(&request, 0) }
            }
        };
        let end = HEADER_LEN + response.result_len as usize;
        response.emit(self.response.bytes_mut());
        tx.copy_from(0, &self.response.bytes()[..end]);
        self.clear(slot, end, || tx);
        Outcome::Answered
    }

    /// Zeroes what earlier responses left behind `end`: all of the frame goes out.
    #[inline(always)] // into its callers, though there are several
    fn clear<'a>(&mut self, slot: u32, end: usize, tx: impl FnOnce() -> SlotBytes<'a>) {
        let dirty = &mut self.dirty[slot as usize];
        if *dirty != end {
            clear_dirty(dirty, end, tx());
        }
    }
}

#[inline(never)] // to keep the other way short
fn clear_dirty(dirty: &mut usize, end: usize, tx: SlotBytes<'_>) {
    tx.fill_zero(end..*dirty);
    *dirty = end;
}

/// A call that works in place.
struct Work<'t, 'a> {
    handler: &'t mut InPlaceHandler,
    args: Arguments<'a>,
    results: Results<'a>,
    /// The request's last header words, which its response repeats but for the length of the results.
    echo: [u64; 2],
    to: Line<'a>,
}

impl<'t, 'a> Work<'t, 'a> {
    /// The work for a function that is found at once, if the request is for one and has all its arguments.
    #[inline]
    fn find(functions: &'t mut InPlaceFunctions, from: Line<'a>, to: Line<'a>) -> Option<Self> {
        let handler = functions.near(from.load(0))?;
        let echo = [from.load(1), from.load(2)];
        let args = Arguments::new(from.rest(HEADER_WORDS).first(first_half(echo[0]) as usize)?);
        let results = Results::new(to.rest(HEADER_WORDS));
        Some(Self { handler, args, results, echo, to })
    }

    /// The length of the results, which are in their place behind a header then.
    #[inline]
    fn run(self) -> Result<usize, Status> {
        let Self { handler, args, results, echo, to } = self;
        to.store(0, Response::SUCCESS);
        to.store(1, echo[0]);
        to.store(2, echo[1]);
        let len = call_in_place(handler, args, results)?;
        #[allow(clippy::cast_possible_truncation)] // a frame's length has 32 bits
        to.store_first_half(1, (len as u32).to_le());
        Ok(len)
    }
}

#[allow(clippy::cast_possible_truncation)] // 24
const MIN_FRAME: u32 = HEADER_LEN as u32;
