//! Counters of the wire, and why packets were dropped.

use std::io;
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use roce_core::{Counter, WireStats};

use crate::port::Port;
use crate::refusal::Refusal;

/// Why a packet that came was dropped. UC drops in silence, so counting is all that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DropReason {
    /// Too short for its headers, or cut because it is longer than any packet.
    Truncated,
    /// A transport version or partition that is not ours.
    BadHeader,
    /// No UC opcode.
    UnknownOpcode,
    /// The invariant CRC is wrong: damaged on the way, or made by something that is no RoCE sender.
    BadIcrc,
    /// No queue pair has that number.
    UnknownQp,
    /// The queue pair is not connected yet.
    NotReady,
    /// Not from the connected peer's address.
    WrongSource,
    /// A MIDDLE or LAST whose sequence number is not the next one.
    PsnGap,
    /// A MIDDLE or LAST with no message of its kind in progress.
    OpcodeSequence,
    /// The rest of a message that was dropped before.
    RestOfMessage,
    /// A WRITE under another key.
    WrongRkey,
    /// A WRITE beyond the region.
    OutOfBounds,
    /// A payload that does not fit its place in the message, the RETH or the receive.
    BadLength,
    /// A SEND or an immediate, and no receive posted.
    NoReceive,
}

impl DropReason {
    /// All of them, with the names of their counters.
    pub const ALL: [(Self, &'static str); 14] = [
        (Self::Truncated, "rx_drop_truncated"),
        (Self::BadHeader, "rx_drop_bad_header"),
        (Self::UnknownOpcode, "rx_drop_unknown_opcode"),
        (Self::BadIcrc, "rx_drop_bad_icrc"),
        (Self::UnknownQp, "rx_drop_unknown_qp"),
        (Self::NotReady, "rx_drop_not_ready"),
        (Self::WrongSource, "rx_drop_wrong_source"),
        (Self::PsnGap, "rx_drop_psn_gap"),
        (Self::OpcodeSequence, "rx_drop_opcode_sequence"),
        (Self::RestOfMessage, "rx_drop_rest_of_message"),
        (Self::WrongRkey, "rx_drop_wrong_rkey"),
        (Self::OutOfBounds, "rx_drop_out_of_bounds"),
        (Self::BadLength, "rx_drop_bad_length"),
        (Self::NoReceive, "rx_drop_no_receive"),
    ];
}

/// One count for each [`DropReason`].
#[derive(Debug, Default)]
pub(crate) struct Drops([Counter; DropReason::ALL.len()]);

impl Drops {
    pub(crate) fn count(&self, reason: DropReason) {
        self.0[reason as usize].add(1);
    }

    fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].get()
    }
}

/// What came to a socket: written under its receive lock.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    pub(crate) packets: Counter,
    pub(crate) drops: Drops,
    /// What the kernel had counted when the socket was closed.
    pub(crate) last_overflow: Counter,
}

/// What came to a queue pair: written under its socket's receive lock.
#[derive(Debug, Default)]
pub(crate) struct RxCounters {
    pub(crate) packets: Counter,
    pub(crate) messages: Counter,
    pub(crate) lost: Counter,
    pub(crate) late: Counter,
    pub(crate) torn: Counter,
    pub(crate) drops: Drops,
}

/// One count for each [`Refusal`], and the errno of the last one.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    counts: [Counter; Refusal::ALL.len()],
    last_errno: Counter,
}

impl Discards {
    pub(crate) fn count(&self, refusal: Refusal, error: &io::Error) {
        self.counts[refusal as usize].add(1);
        self.last_errno.set(error.raw_os_error().unwrap_or(0).unsigned_abs().into());
    }

    fn get(&self, refusal: Refusal) -> u64 {
        self.counts[refusal as usize].get()
    }

    fn total(&self) -> u64 {
        self.counts.iter().map(Counter::get).sum()
    }
}

/// What a queue pair sent: written by its sending half, or under the lock of its fault injector.
#[derive(Debug, Default)]
pub(crate) struct TxCounters {
    pub(crate) packets: Counter,
    pub(crate) messages: Counter,
    pub(crate) retries: Counter,
    pub(crate) discards: Discards,
    pub(crate) dropped: Counter,
    pub(crate) duplicated: Counter,
    pub(crate) reordered: Counter,
    pub(crate) delayed: Counter,
    pub(crate) corrupted: Counter,
}

/// The counters of a queue pair and of the socket that it shares.
///
/// They stay readable after the queue pair is gone.
#[derive(Debug)]
pub struct SoftStats {
    pub(crate) rx: CachePadded<RxCounters>,
    pub(crate) tx: CachePadded<TxCounters>,
    socket: Arc<CachePadded<PortCounters>>,
    port: Weak<Port>,
}

impl SoftStats {
    pub(crate) fn new(port: &Arc<Port>) -> Self {
        Self {
            rx: CachePadded::default(),
            tx: CachePadded::default(),
            socket: Arc::clone(port.counters()),
            port: Arc::downgrade(port),
        }
    }

    /// Packets dropped for this reason: those to this queue pair, and those to the socket that belong to no
    /// queue pair for sure (truncated, bad header or opcode, bad ICRC, unknown QP).
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.rx.drops.get(reason) + self.socket.drops.get(reason)
    }

    /// Packets that sequence numbers show to be missing. One that was merely overtaken is counted here and
    /// under [`late_packets`](Self::late_packets).
    pub fn lost_packets(&self) -> u64 {
        self.rx.lost.get()
    }

    /// Packets behind a later one: duplicates, or overtaken on the way.
    pub fn late_packets(&self) -> u64 {
        self.rx.late.get()
    }

    /// Packets that the kernel refused to send, for whatever reason. They are lost.
    pub fn discarded_packets(&self) -> u64 {
        self.tx.discards.total()
    }

    /// Why the kernel refused the last of the [discarded](Self::discarded_packets) packets.
    pub fn last_send_error(&self) -> Option<io::Error> {
        let errno = i32::try_from(self.tx.discards.last_errno.get()).ok().filter(|&errno| errno != 0)?;
        Some(io::Error::from_raw_os_error(errno))
    }

    /// Datagrams that the kernel dropped because nobody emptied the socket in time. Each is a packet or, on loopback,
    /// up to 32 that left together: [`lost_packets`](Self::lost_packets) has them one by one.
    pub fn socket_overflow(&self) -> u64 {
        self.port.upgrade().map_or_else(|| self.socket.last_overflow.get(), |port| port.overflow())
    }
}

impl WireStats for SoftStats {
    fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let (rx, tx) = (&self.rx, &self.tx);
        let mut values = vec![
            ("rx_packets", rx.packets.get()),
            ("rx_messages", rx.messages.get()),
            ("rx_lost_packets", rx.lost.get()),
            ("rx_late_packets", rx.late.get()),
            ("rx_torn_messages", rx.torn.get()),
            ("rx_socket_packets", self.socket.packets.get()),
            ("rx_socket_overflow", self.socket_overflow()),
        ];
        values.extend(DropReason::ALL.map(|(reason, name)| (name, self.dropped(reason))));
        values.extend([
            ("tx_packets", tx.packets.get()),
            ("tx_messages", tx.messages.get()),
            ("tx_retries", tx.retries.get()),
            ("tx_discarded", self.discarded_packets()),
            ("tx_last_errno", tx.discards.last_errno.get()),
        ]);
        values.extend(Refusal::ALL.map(|(refusal, name)| (name, tx.discards.get(refusal))));
        values.extend([
            ("fault_dropped", tx.dropped.get()),
            ("fault_duplicated", tx.duplicated.get()),
            ("fault_reordered", tx.reordered.get()),
            ("fault_delayed", tx.delayed.get()),
            ("fault_corrupted", tx.corrupted.get()),
        ]);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_index_their_counters() {
        for (i, (reason, _)) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
        }
    }
}
