//! The control messages that tell the length of the packets in a run.

#![allow(clippy::cast_possible_truncation)] // sizes of C, all small

use libc::c_int;

/// A control message of UDP. What follows the value up to the next boundary is padding, as C has it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Control<T> {
    header: libc::cmsghdr,
    pub(super) value: T,
}

impl<T> Control<T> {
    /// Without the padding.
    const LEN: usize = size_of::<libc::cmsghdr>() + size_of::<T>();

    pub(super) const fn new(kind: c_int, value: T) -> Self {
        let header = libc::cmsghdr { cmsg_len: Self::LEN as _, cmsg_level: libc::SOL_UDP, cmsg_type: kind };
        Self { header, value }
    }

    /// Makes it the one of a message, which must not be used once this has moved or ended.
    pub(super) fn attach_to(&mut self, message: &mut libc::msghdr) {
        message.msg_control = (&raw mut *self).cast();
        message.msg_controllen = size_of::<Self>() as _;
    }
}
