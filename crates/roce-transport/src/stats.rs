//! Counters that one thread writes and any thread reads.

use crossbeam_utils::CachePadded;
use roce_core::Counter;

#[derive(Debug, Default)]
pub(crate) struct RxCounters {
    pub(crate) received: Counter,
    pub(crate) lost: Counter,
    pub(crate) lost_packets: Counter,
    pub(crate) torn: Counter,
    pub(crate) stale_metadata: Counter,
    pub(crate) overruns: Counter,
    pub(crate) dropped: Counter,
    pub(crate) completion_errors: Counter,
}

#[derive(Debug, Default)]
pub(crate) struct TxCounters {
    pub(crate) sent: Counter,
    pub(crate) stalls: Counter,
    pub(crate) completion_errors: Counter,
}

/// Each half on its own cache line, since each has its own thread.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rx: CachePadded<RxCounters>,
    pub(crate) tx: CachePadded<TxCounters>,
}

/// What a transceiver has counted so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages that arrived whole.
    pub received: u64,
    /// Messages handed to the link.
    pub sent: u64,
    /// Messages that never arrived, by the gaps in the slot sequence of WRITEs.
    pub lost: u64,
    /// Packets that are missing. A link that sees packets tells them by their sequence numbers, those that it dropped
    /// included, and those on the way to a message that never came once the next one has come. On others it is what
    /// the sequence numbers in the immediates tell ([`ImmediateFormat::Hsb`](crate::ImmediateFormat::Hsb) and
    /// `Hsb2510`; 0 for the others): all packets of the frames that never came. One missing before a frame's last is
    /// not seen there.
    pub lost_packets: u64,
    /// Frames that came to their end with a packet missing before.
    pub torn: u64,
    /// Frames with the metadata of another one: their page was overwritten before they were seen. Only with
    /// [`metadata`](crate::ConfigBuilder::metadata), and where an immediate has a sequence number.
    pub stale_metadata: u64,
    /// Messages that overwrote one which was not consumed.
    pub overruns: u64,
    /// Messages whose immediate names no slot of the ring.
    pub dropped: u64,
    /// Sends and receives that completed with an error.
    pub completion_errors: u64,
    /// Times that the send queue had no room for a slot which was offered, until something had left or been reaped.
    pub tx_stalls: u64,
    /// Counters of the wire below, as the link names them.
    pub wire: Vec<(&'static str, u64)>,
}

impl Stats {
    pub(crate) fn of(counters: &Counters, wire: Vec<(&'static str, u64)>) -> Self {
        Self {
            received: counters.rx.received.get(),
            sent: counters.tx.sent.get(),
            lost: counters.rx.lost.get(),
            lost_packets: counters.rx.lost_packets.get(),
            torn: counters.rx.torn.get(),
            stale_metadata: counters.rx.stale_metadata.get(),
            overruns: counters.rx.overruns.get(),
            dropped: counters.rx.dropped.get(),
            completion_errors: counters.rx.completion_errors.get() + counters.tx.completion_errors.get(),
            tx_stalls: counters.tx.stalls.get(),
            wire,
        }
    }

    /// Name and value of each counter, without those of the wire.
    pub fn fields(&self) -> [(&'static str, u64); 10] {
        [
            ("received", self.received),
            ("sent", self.sent),
            ("lost", self.lost),
            ("lost_packets", self.lost_packets),
            ("torn", self.torn),
            ("stale_metadata", self.stale_metadata),
            ("overruns", self.overruns),
            ("dropped", self.dropped),
            ("completion_errors", self.completion_errors),
            ("tx_stalls", self.tx_stalls),
        ]
    }
}
