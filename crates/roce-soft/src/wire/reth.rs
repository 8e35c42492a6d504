//! The RDMA extended transport header: 16 bytes that say where a WRITE goes.

use std::fmt;

use roce_core::Rkey;
use zerocopy::network_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const LEN: usize = size_of::<View>();

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct View {
    addr: U64,
    rkey: U32,
    len: U32,
}

/// Where a WRITE goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reth {
    /// Byte address in the responder's region.
    pub addr: u64,
    /// The responder's key.
    pub rkey: Rkey,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    /// The header at the front of `bytes` and what follows it; `None`: too few bytes.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (view, rest) = View::ref_from_prefix(bytes).ok()?;
        let reth = Self { addr: view.addr.get(), rkey: Rkey::new(view.rkey.get()), len: view.len.get() };
        Some((reth, rest))
    }

    /// Writes the header to `buf`, which has [`LEN`] bytes.
    #[inline]
    pub(super) fn emit(&self, buf: &mut [u8]) {
        let view =
            View { addr: U64::new(self.addr), rkey: U32::new(self.rkey.get()), len: U32::new(self.len) };
        buf.copy_from_slice(view.as_bytes());
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {} dma {}", self.addr, self.rkey, self.len)
    }
}
