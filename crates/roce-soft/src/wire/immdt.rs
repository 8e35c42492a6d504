//! The immediate: 4 bytes that reach the receiver's completion.

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

pub(super) const LEN: usize = size_of::<U32>();

/// The immediate at the front of `bytes` in host order, and what follows it; `None`: too few bytes.
#[inline]
pub(super) fn parse(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (view, rest) = U32::ref_from_prefix(bytes).ok()?;
    Some((view.get(), rest))
}

/// Writes the immediate to the front of `buf`, which has at least [`LEN`] bytes.
#[inline]
pub(super) fn emit(imm: u32, buf: &mut [u8]) {
    buf[..LEN].copy_from_slice(U32::new(imm).as_bytes());
}
