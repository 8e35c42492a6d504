//! One request: out of its slot, through its handler, into the slot that answers it. Both loops serve this way.

#![forbid(unsafe_code)]

use roce_ring::{Geometry, SlotBytes};

use crate::buffer::Buffer;
use crate::rpc::{HEADER_LEN, Request, Response, Status};
use crate::stats::{DispatchStats, Event};
use crate::table::{Handler, call};
use crate::{DispatchError, FunctionTable};

/// The functions, and private copies of the request and the response in hand.
pub(crate) struct Server {
    table: FunctionTable,
    /// An RX slot's copy, zero past `filled`.
    request: Buffer,
    filled: usize,
    /// One frame.
    response: Buffer,
    /// For each TX slot, how many of its first bytes may be other than zero.
    dirty: Box<[usize]>,
    stats: DispatchStats,
}

/// What became of the results.
enum Reply {
    /// That many bytes of them are in the response buffer.
    Results(usize),
    /// The handler wrote the whole response into the TX slot itself.
    Written(Status),
    /// There are none.
    Refused(Status),
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
            request: Buffer::new(rx.page_size() as usize),
            filled: HEADER_LEN,
            response: Buffer::new(frame_size),
            dirty: vec![frame_size; tx.num_pages() as usize].into_boxed_slice(),
            stats: DispatchStats::default(),
        })
    }

    pub(crate) fn stats(&self) -> &DispatchStats {
        &self.stats
    }

    /// Copies the request out of its slot. `None`: the message is no request.
    pub(crate) fn read(&mut self, rx: SlotBytes<'_>) -> Option<Request> {
        let buffer = self.request.bytes_mut();
        rx.copy_to(0, &mut buffer[..HEADER_LEN]);
        let request = Request::parse(buffer).ok()?;
        let end = HEADER_LEN + request.payload(buffer).map_or(0, <[u8]>::len);
        rx.copy_to(HEADER_LEN, &mut buffer[HEADER_LEN..end]);
        if let Some(stale) = buffer.get_mut(end..self.filled) {
            stale.fill(0);
        }
        self.filled = end;
        Some(request)
    }

    /// Serves the request that was read last, and leaves a whole response in `tx`, which is `slot` of its ring.
    pub(crate) fn answer(&mut self, request: &Request, slot: u32, tx: SlotBytes<'_>) {
        self.stats.count(Event::Request);
        let (status, len) = match self.serve(request, slot, tx) {
            Reply::Written(status) => return self.stats.count_status(status),
            Reply::Results(len) => (Status::SUCCESS, len),
            Reply::Refused(status) => (status, 0),
        };
        self.stats.count_status(status);
        self.write(request, status, len, slot, tx);
    }

    fn serve(&mut self, request: &Request, slot: u32, tx: SlotBytes<'_>) -> Reply {
        let Some(function) = self.table.find(request.function_id) else {
            return Reply::Refused(Status::UNKNOWN_FUNCTION);
        };
        let args = match request.payload(self.request.bytes()) {
            Ok(args) if function.accepts(request.arg_len) => args,
            _ => return Reply::Refused(Status::BAD_LENGTH),
        };
        match &mut function.handler {
            Handler::Rust(handler) => {
                let room = &mut self.response.bytes_mut()[HEADER_LEN..];
                room.fill(0);
                call(handler, args, room).map_or_else(Reply::Refused, Reply::Results)
            }
            Handler::Raw(handler) => {
                let handler = *handler;
                self.clear(slot, tx, 0);
                self.dirty[slot as usize] = self.response.bytes().len();
                handler.call(self.request.bytes(), tx);
                self.check_written(tx)
            }
        }
    }

    /// Whether a raw handler left a response that a frame holds.
    fn check_written(&self, tx: SlotBytes<'_>) -> Reply {
        let room = self.response.bytes().len() - HEADER_LEN;
        match Response::parse(&tx.read::<HEADER_LEN>(0)) {
            Err(_) => Reply::Refused(Status::NO_RESPONSE),
            Ok(response) if response.result_len as usize > room => Reply::Refused(Status::RESULT_TOO_LARGE),
            Ok(response) => Reply::Written(response.status),
        }
    }

    fn write(&mut self, request: &Request, status: Status, len: usize, slot: u32, tx: SlotBytes<'_>) {
        let header = Response {
            status,
            // A frame's length has 32 bits, and the results are a part of one.
            result_len: u32::try_from(len).unwrap_or(u32::MAX),
            request_id: request.request_id,
            ptp_timestamp: request.ptp_timestamp,
        };
        let end = HEADER_LEN + len;
        header.emit(self.response.bytes_mut());
        tx.copy_from(0, &self.response.bytes()[..end]);
        self.clear(slot, tx, end);
    }

    /// Zeroes what earlier responses left behind `end`: all of the frame goes out.
    fn clear(&mut self, slot: u32, tx: SlotBytes<'_>, end: usize) {
        let dirty = std::mem::replace(&mut self.dirty[slot as usize], end);
        tx.fill_zero(end..dirty);
    }
}

#[allow(clippy::cast_possible_truncation)] // 24
const MIN_FRAME: u32 = HEADER_LEN as u32;
