//! What it means when the kernel refuses a packet.
//!
//! To an unreliable connection a packet that cannot leave now is a packet lost: it is counted, and the next one
//! may leave again. Only what every packet would meet, until somebody changes the configuration, is an error.

#![forbid(unsafe_code)]

use std::io;

/// Why the kernel refused a packet on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no way to the peer: no route, no neighbour, or an interface that is down or gone.
    Unreachable,
    /// Somebody does not want it: a firewall here, or the peer.
    Rejected,
    /// No memory, or anything else that may pass.
    Other,
    /// The packet, the addresses or the socket are wrong.
    Lasting,
}

impl Refusal {
    /// All of them, with the names of their counters.
    pub(crate) const ALL: [(Self, &'static str); 4] = [
        (Self::Unreachable, "tx_discard_unreachable"),
        (Self::Rejected, "tx_discard_rejected"),
        (Self::Other, "tx_discard_other"),
        (Self::Lasting, "tx_discard_lasting"),
    ];

    pub(crate) fn of(error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(0) {
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::ENODEV
            | libc::ENXIO => Self::Unreachable,
            libc::EPERM | libc::ECONNREFUSED => Self::Rejected,
            libc::EMSGSIZE
            | libc::EINVAL
            | libc::EACCES
            | libc::EBADF
            | libc::ENOTSOCK
            | libc::EFAULT
            | libc::EPIPE
            | libc::EDESTADDRREQ
            | libc::EAFNOSUPPORT
            | libc::EOPNOTSUPP => Self::Lasting,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: i32) -> Refusal {
        Refusal::of(&io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn what_a_network_does_passes() {
        for errno in [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::ENETDOWN, libc::EHOSTDOWN, libc::ENODEV] {
            assert_eq!(of(errno), Refusal::Unreachable, "{}", io::Error::from_raw_os_error(errno));
        }
        for errno in [libc::EPERM, libc::ECONNREFUSED] {
            assert_eq!(of(errno), Refusal::Rejected, "{}", io::Error::from_raw_os_error(errno));
        }
        for errno in [libc::ENOMEM, libc::EIO, libc::ETIMEDOUT] {
            assert_eq!(of(errno), Refusal::Other, "{}", io::Error::from_raw_os_error(errno));
        }
    }

    #[test]
    fn what_the_configuration_does_lasts() {
        let lasting = [libc::EMSGSIZE, libc::EINVAL, libc::EACCES, libc::EBADF, libc::ENOTSOCK, libc::EFAULT];
        for errno in lasting {
            assert_eq!(of(errno), Refusal::Lasting, "{}", io::Error::from_raw_os_error(errno));
        }
    }

    #[test]
    fn refusals_index_their_counters() {
        for (i, (refusal, _)) in Refusal::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, i);
        }
    }
}
