//! One request: out of its slot, through its handler, into the slot that answers it. Both loops serve this way.

#![forbid(unsafe_code)]

use roce_core::Line;
use roce_ring::{Geometry, SlotBytes};
use zerocopy::IntoBytes;

use crate::buffer::Buffer;
use crate::raw::RawFunction;
use crate::rpc::{HEADER_LEN, HEADER_WORDS, Request, Response, Status};
use crate::stats::{DispatchStats, Event};
use crate::table::{Function, Handler, call};
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

    /// Copies a request out of `slot` of the RX ring, serves it if it then may be answered, and leaves a whole response in
    /// that of the TX ring.
    ///
    /// A short request for a Rust function that has a short answer, the usual case, is dealt with here, by the word.
    #[inline]
    pub(crate) fn exchange<'a>(
        &mut self,
        slot: u32,
        lines: impl FnOnce() -> Option<(Line<'a>, Line<'a>)>,
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
            return self.answer_else(request, slot, slots().1);
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
    #[inline]
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
        self.answer(request, slot, tx)
    }

    /// Answers a short request.
    #[inline(never)] // to keep the other way short
    fn answer_else(&mut self, request: Request, slot: u32, tx: SlotBytes<'_>) -> Outcome {
        let end = HEADER_LEN + request.arg_len as usize;
        self.request.bytes_mut()[HEADER_LEN..end].copy_from_slice(&self.short.as_bytes()[HEADER_LEN..end]);
        self.filled = self.filled.max(end);
        self.answer(request, slot, tx)
    }

    fn answer(&mut self, request: Request, slot: u32, tx: SlotBytes<'_>) -> Outcome {
        let results = self.serve(&request, slot, tx);
        self.finish(request, results, slot, tx)
    }

    /// The length of the results.
    fn serve(&mut self, request: &Request, slot: u32, tx: SlotBytes<'_>) -> Result<usize, Refusal> {
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
            Handler::Raw(handler) => {
                let handler = *handler;
                Err(self.serve_raw(handler, request, slot, tx))
            }
        }
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
        self.dirty[slot as usize] = self.response.bytes().len();
        handler.call(self.request.bytes(), tx);
        self.check_written(tx)
    }

    /// Whether a raw handler left a response that a frame holds.
    fn check_written(&self, tx: SlotBytes<'_>) -> Refusal {
        let room = self.response.bytes().len() - HEADER_LEN;
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
    #[inline]
    fn clear<'a>(&mut self, slot: u32, end: usize, tx: impl FnOnce() -> SlotBytes<'a>) {
        let dirty = std::mem::replace(&mut self.dirty[slot as usize], end);
        if dirty > end {
            tx().fill_zero(end..dirty);
        }
    }
}

#[allow(clippy::cast_possible_truncation)] // 24
const MIN_FRAME: u32 = HEADER_LEN as u32;
