//! The raw limits of what goes over a link: plain UDP and plain UC, with nothing of the transport on the path.

#[allow(unsafe_code)]
mod socket;
#[cfg(feature = "verbs")]
pub(super) mod uc;
pub(super) mod udp;
