//! The UDP socket below the queue pairs, and the only system calls on the message path.

mod batch;
mod socket;

pub(crate) use batch::{Datagram, RecvBatch};
pub(crate) use socket::{Peer, Socket};
