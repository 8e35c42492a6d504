//! Packets that came with one system call.

#![allow(clippy::cast_possible_truncation)] // sizes of C, all small

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::NonNull;

use nix::errno::Errno;

use super::Socket;
use super::control::Control;
use super::socket::ADDRESS_LEN;
use crate::wire::{ICRC_LEN, MAX_HEADER_LEN, MAX_PAYLOAD};

const DATAGRAMS: usize = 16;

/// The longest packet, its pad, and a byte more by which a longer one is known.
const PACKET_LEN: usize = (MAX_HEADER_LEN + MAX_PAYLOAD + 4 + ICRC_LEN).next_multiple_of(64);

#[repr(C)]
struct Buffers {
    headers: [libc::mmsghdr; DATAGRAMS],
    vectors: [libc::iovec; DATAGRAMS],
    sources: [libc::sockaddr_in; DATAGRAMS],
    bytes: [[u8; PACKET_LEN]; DATAGRAMS],
}

/// The longest UDP payload, as long as a run can be.
const LONGEST_RUN: usize = 65_507;
const _: () = assert!(PACKET_LEN * DATAGRAMS >= LONGEST_RUN, "the buffers together hold a run");

/// Whether runs of packets may be received as one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Not asked for yet: until then a lone packet is received in less time.
    Unasked,
    Apart,
    AsOne,
}

/// A packet, from a datagram of its own or from a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecvPacket<'a> {
    pub(crate) source: SocketAddrV4,
    pub(crate) bytes: &'a [u8],
    /// It was longer than any packet of RoCE, and `bytes` is only its beginning.
    pub(crate) cut: bool,
}

/// Buffers for packets, prepared once: each header leads to its buffer and its source address.
#[derive(Debug)]
pub(crate) struct RecvBatch {
    buffers: NonNull<Buffers>,
    received: usize,
    /// Calls that found a packet since one that found none, up to [`BURST`](Self::BURST).
    in_a_row: u8,
    runs: Runs,
    /// For a run, which fills the buffers one behind the other; else 0.
    packet_len: usize,
}

// SAFETY: the buffers belong to this value alone, and nothing in them depends on a thread.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// So many calls with a packet in a row are a burst.
    const BURST: u8 = 2;

    /// So many packets at once, and runs of them are likely.
    const MANY: usize = DATAGRAMS / 2;

    pub(crate) fn new() -> Self {
        let layout = Layout::new::<Buffers>();
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) }.cast::<Buffers>();
        let Some(buffers) = NonNull::new(at) else { handle_alloc_error(layout) };
        for i in 0..DATAGRAMS {
            // SAFETY: `at` leads to a whole Buffers, i is below DATAGRAMS, and all-zero bytes are values of all
            // its types; only raw pointers are made to its parts.
            unsafe {
                (*at).vectors[i].iov_base = (&raw mut (*at).bytes[i]).cast();
                (*at).vectors[i].iov_len = PACKET_LEN;
                (*at).headers[i].msg_hdr.msg_iov = &raw mut (*at).vectors[i];
                (*at).headers[i].msg_hdr.msg_iovlen = 1;
                (*at).headers[i].msg_hdr.msg_name = (&raw mut (*at).sources[i]).cast();
            }
        }
        Self { buffers, received: 0, in_a_row: 0, runs: Runs::Unasked, packet_len: 0 }
    }

    /// Takes what has come, within limits, and says how many datagrams. Never blocks.
    ///
    /// One packet at a time while they come one at a time: the call for one costs half of the call for many.
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        let in_a_burst = self.in_a_row >= Self::BURST;
        self.received = 0;
        self.received = match self.runs {
            Runs::AsOne => self.receive_run(socket)?,
            _ if in_a_burst => self.receive_many(socket)?,
            _ => self.receive_one(socket)?,
        };
        if self.runs == Runs::Unasked && self.received >= Self::MANY {
            self.runs = if socket.receive_runs() { Runs::AsOne } else { Runs::Apart };
        }
        self.in_a_row = match self.received {
            0 => 0,
            1 if in_a_burst && self.runs != Runs::AsOne => 0,
            _ => Self::BURST.min(self.in_a_row + 1),
        };
        Ok(self.received)
    }

    /// Whether another call would likely find something.
    #[inline]
    pub(crate) fn is_more_likely(&self) -> bool {
        match self.runs {
            Runs::AsOne => self.in_a_row >= Self::BURST,
            _ => self.received == DATAGRAMS,
        }
    }

    #[inline]
    fn receive_one(&mut self, socket: &Socket) -> io::Result<usize> {
        let at = self.buffers.as_ptr();
        let mut source_len = ADDRESS_LEN;
        let flags = libc::MSG_DONTWAIT | LENGTH_OF_ALL;
        // SAFETY: `at` leads to a whole Buffers that this value owns; only raw pointers to its parts are made.
        let (bytes, source) = unsafe { (&raw mut (*at).bytes[0], &raw mut (*at).sources[0]) };
        // SAFETY: the buffer has PACKET_LEN bytes and the address ADDRESS_LEN, as the call is told.
        let received = unsafe {
            libc::recvfrom(socket.fd(), bytes.cast(), PACKET_LEN, flags, source.cast(), &raw mut source_len)
        };
        let Ok(len) = usize::try_from(received) else { return none_or_error() };
        // SAFETY: as above; a plain value is written.
        unsafe { (*at).headers[0].msg_len = len as u32 };
        Ok(1)
    }

    /// One datagram, which may be a run.
    fn receive_run(&mut self, socket: &Socket) -> io::Result<usize> {
        let at = self.buffers.as_ptr();
        // SAFETY: `at` leads to a whole Buffers that this value owns; only raw pointers to its parts are made.
        let (bytes, source) = unsafe { (&raw mut (*at).bytes, &raw mut (*at).sources[0]) };
        let mut vector = libc::iovec { iov_base: bytes.cast(), iov_len: PACKET_LEN * DATAGRAMS };
        let mut control = Control::<c_int>::new(libc::UDP_GRO, 0);
        // SAFETY: all-zero bytes are a value of this C structure.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = source.cast();
        header.msg_namelen = ADDRESS_LEN;
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        control.attach_to(&mut header);
        // SAFETY: all that the header leads to lives until the call returns, and is as long as it says.
        let received = unsafe { libc::recvmsg(socket.fd(), &raw mut header, libc::MSG_DONTWAIT) };
        let Ok(len) = usize::try_from(received) else { return none_or_error() };
        // The socket asks for this one kind of control message.
        let is_run = header.msg_controllen != 0;
        self.packet_len = if is_run { usize::try_from(control.value).unwrap_or(0) } else { 0 };
        // SAFETY: `at` as above; a plain value is written.
        unsafe { (*at).headers[0].msg_len = len as u32 };
        Ok(1)
    }

    fn receive_many(&mut self, socket: &Socket) -> io::Result<usize> {
        let at = self.buffers.as_ptr();
        for i in 0..DATAGRAMS {
            // SAFETY: `at` leads to a whole Buffers that this value owns, and i is below DATAGRAMS.
            unsafe { (*at).headers[i].msg_hdr.msg_namelen = ADDRESS_LEN };
        }
        // SAFETY: the headers were prepared by `new`, and all that they lead to belongs to this value.
        let headers = unsafe { (&raw mut (*at).headers).cast() };
        // SAFETY: there are DATAGRAMS headers; the socket does not block, so no time-out is needed.
        let received = unsafe {
            libc::recvmmsg(
                socket.fd(),
                headers,
                DATAGRAMS as u32,
                (libc::MSG_DONTWAIT | LENGTH_OF_ALL) as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).or_else(|_| none_or_error())
    }

    /// The packets of the last batch, by the datagrams that they came with.
    #[inline]
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = impl Iterator<Item = RecvPacket<'_>>> {
        (0..self.received).map(|i| self.packets_of(i))
    }

    /// Those of one datagram. `i` is below `received`.
    #[inline]
    fn packets_of(&self, i: usize) -> impl Iterator<Item = RecvPacket<'_>> {
        let at = self.buffers.as_ptr();
        // SAFETY: `at` leads to a whole Buffers that this value owns; the kernel is done with it, and i is below
        // DATAGRAMS. Only plain values are copied out.
        let (len, source) = unsafe { ((*at).headers[i].msg_len as usize, (*at).sources[i]) };
        let (packet_len, count, room) = match self.packet_len {
            0 => (len, 1, PACKET_LEN),
            packet_len => (packet_len, len.div_ceil(packet_len).max(1), PACKET_LEN * DATAGRAMS),
        };
        // SAFETY: the kernel wrote `len` bytes, at most `room` from that buffer on, and nobody writes them again before
        // the next `receive`, which takes this value by &mut.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const (*at).bytes[i]).cast(), len.min(room)) };
        let ip = Ipv4Addr::from(source.sin_addr.s_addr.to_ne_bytes());
        let source = SocketAddrV4::new(ip, u16::from_be(source.sin_port));
        (0..count).map(move |k| {
            let (start, end) = (k * packet_len, len.min((k + 1) * packet_len));
            let cut = end - start > PACKET_LEN;
            RecvPacket { source, bytes: &bytes[start..end.min(start + PACKET_LEN)], cut }
        })
    }
}

/// Makes the result the datagram's own length, however much of it fits.
const LENGTH_OF_ALL: c_int = libc::MSG_TRUNC;

/// What a failed call means: no packet, or an error.
#[inline]
fn none_or_error() -> io::Result<usize> {
    // The number itself, without an error made of it: this is what every poll in vain ends with.
    match Errno::last_raw() {
        libc::EAGAIN | libc::EINTR => Ok(0),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

impl Drop for RecvBatch {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout, and nothing borrows from it any more.
        unsafe { std::alloc::dealloc(self.buffers.as_ptr().cast(), Layout::new::<Buffers>()) };
    }
}
