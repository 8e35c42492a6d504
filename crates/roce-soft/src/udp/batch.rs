//! Packets that came with one system call.

#![allow(clippy::cast_possible_truncation)] // sizes of C, all small

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::ptr::NonNull;

use nix::errno::Errno;

use super::Socket;
use super::socket::ADDRESS_LEN;
use crate::wire::{ICRC_LEN, MAX_HEADER_LEN, MAX_PAYLOAD};

const PACKETS: usize = 16;

/// The longest packet, its pad, and a byte more by which a longer one is known.
const BUFFER_LEN: usize = (MAX_HEADER_LEN + MAX_PAYLOAD + 4 + ICRC_LEN).next_multiple_of(64);

#[repr(C)]
struct Buffers {
    headers: [libc::mmsghdr; PACKETS],
    vectors: [libc::iovec; PACKETS],
    sources: [libc::sockaddr_in; PACKETS],
    bytes: [[u8; BUFFER_LEN]; PACKETS],
}

/// A packet of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram<'a> {
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
}

// SAFETY: the buffers belong to this value alone, and nothing in them depends on a thread.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    pub(crate) const CAPACITY: usize = PACKETS;

    /// So many calls with a packet in a row are a burst.
    const BURST: u8 = 2;

    pub(crate) fn new() -> Self {
        let layout = Layout::new::<Buffers>();
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) }.cast::<Buffers>();
        let Some(buffers) = NonNull::new(at) else { handle_alloc_error(layout) };
        for i in 0..PACKETS {
            // SAFETY: `at` leads to a whole Buffers, i is below PACKETS, and all-zero bytes are values of all
            // its types; only raw pointers are made to its parts.
            unsafe {
                (*at).vectors[i].iov_base = (&raw mut (*at).bytes[i]).cast();
                (*at).vectors[i].iov_len = BUFFER_LEN;
                (*at).headers[i].msg_hdr.msg_iov = &raw mut (*at).vectors[i];
                (*at).headers[i].msg_hdr.msg_iovlen = 1;
                (*at).headers[i].msg_hdr.msg_name = (&raw mut (*at).sources[i]).cast();
                (*at).headers[i].msg_hdr.msg_namelen = ADDRESS_LEN;
            }
        }
        Self { buffers, received: 0, in_a_row: 0 }
    }

    /// Takes what has come, at most [`CAPACITY`](Self::CAPACITY), and says how many. Never blocks.
    ///
    /// One packet at a time while they come one at a time: the call for one costs half of the call for many.
    #[inline]
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        let in_a_burst = self.in_a_row >= Self::BURST;
        self.received = 0;
        self.received = if in_a_burst { self.receive_many(socket)? } else { self.receive_one(socket)? };
        self.in_a_row = match self.received {
            0 => 0,
            1 if in_a_burst => 0,
            _ => Self::BURST.min(self.in_a_row + 1),
        };
        Ok(self.received)
    }

    #[inline]
    fn receive_one(&mut self, socket: &Socket) -> io::Result<usize> {
        let at = self.buffers.as_ptr();
        let mut source_len = ADDRESS_LEN;
        // With MSG_TRUNC the result is the packet's own length, however much of it fits.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: `at` leads to a whole Buffers that this value owns; only raw pointers to its parts are made.
        let (bytes, source) = unsafe { (&raw mut (*at).bytes[0], &raw mut (*at).sources[0]) };
        // SAFETY: the buffer has BUFFER_LEN bytes and the address ADDRESS_LEN, as the call is told.
        let received = unsafe {
            libc::recvfrom(socket.fd(), bytes.cast(), BUFFER_LEN, flags, source.cast(), &raw mut source_len)
        };
        let Ok(len) = usize::try_from(received) else { return none_or_error() };
        // SAFETY: as above; plain values are written.
        unsafe {
            (*at).headers[0].msg_len = len.min(BUFFER_LEN) as u32;
            (*at).headers[0].msg_hdr.msg_flags = if len > BUFFER_LEN { libc::MSG_TRUNC } else { 0 };
        }
        Ok(1)
    }

    fn receive_many(&mut self, socket: &Socket) -> io::Result<usize> {
        let at = self.buffers.as_ptr();
        for i in 0..PACKETS {
            // SAFETY: `at` leads to a whole Buffers that this value owns, and i is below PACKETS.
            unsafe { (*at).headers[i].msg_hdr.msg_namelen = ADDRESS_LEN };
        }
        // SAFETY: the headers were prepared by `new`, and all that they lead to belongs to this value.
        let headers = unsafe { (&raw mut (*at).headers).cast() };
        // SAFETY: there are PACKETS headers; the socket does not block, so no time-out is needed.
        let received = unsafe {
            libc::recvmmsg(
                socket.fd(),
                headers,
                PACKETS as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(received).or_else(|_| none_or_error())
    }

    /// The packets of the last batch.
    #[inline]
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        (0..self.received).map(|i| self.datagram(i))
    }

    /// `i` is below `received`.
    #[inline]
    fn datagram(&self, i: usize) -> Datagram<'_> {
        let at = self.buffers.as_ptr();
        // SAFETY: `at` leads to a whole Buffers that this value owns; the kernel is done with it, and i is below
        // PACKETS. Only plain values are copied out.
        let (len, flags, source) = unsafe {
            ((*at).headers[i].msg_len as usize, (*at).headers[i].msg_hdr.msg_flags, (*at).sources[i])
        };
        // SAFETY: the kernel wrote `len` bytes, at most iov_len, and nobody writes them again before the next
        // `receive`, which takes this value by &mut.
        let bytes = unsafe {
            std::slice::from_raw_parts((&raw const (*at).bytes[i]).cast::<u8>(), len.min(BUFFER_LEN))
        };
        let ip = Ipv4Addr::from(source.sin_addr.s_addr.to_ne_bytes());
        let source = SocketAddrV4::new(ip, u16::from_be(source.sin_port));
        Datagram { source, bytes, cut: flags & libc::MSG_TRUNC != 0 }
    }
}

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
