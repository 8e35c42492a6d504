//! What a case knows of a link.

use roce_core::Device;
use roce_soft::FaultConfig;
use roce_transport::ConfigBuilder;

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that speaks first.
    A,
    /// The one that answers.
    B,
}

/// What becomes of a SEND that is longer than the receive it meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverlongSend {
    /// It is dropped in silence, and the receive waits for the next.
    Dropped,
    /// The receive fails, and the receiver's queue pair with it.
    FailsReceiver,
}

/// What becomes of a WRITE with a wrong key, or outside its region. Its sender never sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadWrite {
    /// It is dropped in silence, and the receiver goes on.
    Dropped,
    /// It is dropped; the receiver's queue pair may fail, or go on.
    MayFailReceiver,
}

/// Two ends that can reach each other, and what their link does where links differ.
///
/// A value belongs to one case: ends of other values must not disturb it.
pub trait Links {
    /// What makes the queue pairs.
    type Device: Device;

    /// Opens the device of one end. Both ends may have the same device; each call opens it anew.
    fn device(&self, side: Side) -> Self::Device;

    /// The configuration of a transceiver at one end: device, and address in
    /// [`local_ip`](ConfigBuilder::local_ip).
    fn config(&self, side: Side) -> ConfigBuilder;

    /// What becomes of a SEND that is too long.
    fn overlong_send(&self) -> OverlongSend;

    /// What becomes of a WRITE that must not be.
    fn bad_write(&self) -> BadWrite;

    /// Whether a queue pair still receives after a WRITE of several packets broke off, or met no receive for its
    /// immediate.
    fn survives_torn_writes(&self) -> bool;
}

/// A link that loses packets on demand.
pub trait LossyLinks: Links {
    /// As [`device`](Links::device); what it sends suffers from `faults`.
    fn lossy_device(&self, side: Side, faults: FaultConfig) -> Self::Device;

    /// The name of the counter, in the wire statistics of a queue pair, of packets that were lost on purpose.
    fn lost_counter(&self) -> &'static str;

    /// The name of the counter of packets that left.
    fn sent_counter(&self) -> &'static str;
}
