//! Asynchronous events: what becomes of a queue pair, a port or a device without any request failing.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use roce_core::CompletionError;

use crate::sys::{AsyncEvent, Verbs, Zeroed, ibv_context};

const CQ_ERR: c_int = 0;
const QP_FATAL: c_int = 1;
const QP_REQ_ERR: c_int = 2;
const QP_ACCESS_ERR: c_int = 3;
const DEVICE_FATAL: c_int = 8;
const PORT_ACTIVE: c_int = 9;
const PORT_ERR: c_int = 10;

/// The names in the header of the numbers above.
#[cfg(test)]
pub(crate) const NUMBERS: [(c_int, &str); 7] = [
    (CQ_ERR, "IBV_EVENT_CQ_ERR"),
    (QP_FATAL, "IBV_EVENT_QP_FATAL"),
    (QP_REQ_ERR, "IBV_EVENT_QP_REQ_ERR"),
    (QP_ACCESS_ERR, "IBV_EVENT_QP_ACCESS_ERR"),
    (DEVICE_FATAL, "IBV_EVENT_DEVICE_FATAL"),
    (PORT_ACTIVE, "IBV_EVENT_PORT_ACTIVE"),
    (PORT_ERR, "IBV_EVENT_PORT_ERR"),
];

/// The event that made something useless, if one did. Kept until something says otherwise.
#[derive(Debug, Default)]
pub(crate) struct Fault(AtomicI32);

impl Fault {
    fn set(&self, event: c_int) {
        self.0.store(event + 1, Ordering::Relaxed); // 0 says none, and is a number of an event
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn get(&self) -> Option<CompletionError> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            stored => Some(describe(stored - 1)),
        }
    }
}

fn describe(event: c_int) -> CompletionError {
    let (what, reason) = match event {
        CQ_ERR => ("completion queue", "IBV_EVENT_CQ_ERR: it overflowed or broke"),
        QP_FATAL => ("queue pair", "IBV_EVENT_QP_FATAL: it broke"),
        QP_REQ_ERR => ("queue pair", "IBV_EVENT_QP_REQ_ERR: the peer sent an invalid request"),
        QP_ACCESS_ERR => {
            ("queue pair", "IBV_EVENT_QP_ACCESS_ERR: the peer wrote where its key does not allow it")
        }
        DEVICE_FATAL => ("device", "IBV_EVENT_DEVICE_FATAL: it broke or was removed"),
        PORT_ERR => ("port", "IBV_EVENT_PORT_ERR: its link went down"),
        _ => ("queue pair", "an unknown event"),
    };
    CompletionError { what, reason, status: event, vendor: 0 }
}

/// Events that make nothing useless by themselves, as far as this crate knows: that the table of GIDs has changed, and
/// whatever is newer than this crate.
#[derive(Debug, Default)]
pub(crate) struct OtherEvents {
    count: AtomicU64,
    last: AtomicI32,
}

impl OtherEvents {
    /// Several threads may look at once, and events are rare.
    fn count(&self, event: c_int) {
        self.last.store(event, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were, and the number of the last one.
    pub(crate) fn get(&self) -> (u64, u64) {
        let last = self.last.load(Ordering::Relaxed);
        (self.count.load(Ordering::Relaxed), u64::from(last.cast_unsigned()))
    }
}

/// What happened to a device and to the one port of it that is used.
#[derive(Debug, Default)]
pub(crate) struct DeviceFaults {
    device: Fault,
    port: Fault,
    others: Arc<OtherEvents>,
}

impl DeviceFaults {
    pub(crate) fn get(&self) -> Option<CompletionError> {
        self.device.get().or_else(|| self.port.get())
    }

    pub(crate) fn others(&self) -> &Arc<OtherEvents> {
        &self.others
    }

    /// Takes all events that wait, and files each with what it is about. Never blocks where the context's event
    /// file is non-blocking.
    ///
    /// # Safety
    ///
    /// `context` is open. The context word of every queue pair and completion queue in it points to a [`Fault`]
    /// that outlives the object.
    pub(crate) unsafe fn collect(&self, verbs: &Verbs, context: NonNull<ibv_context>, port: u8) {
        let mut event = AsyncEvent::zeroed();
        // SAFETY: an open context, and an event that may be written.
        while unsafe { (verbs.ibv_get_async_event)(context.as_ptr(), &raw mut event) } == 0 {
            // SAFETY: the event was just read, and is acknowledged only after this.
            unsafe { self.file(&event, port) };
            // SAFETY: acknowledges the event read above, once.
            unsafe { (verbs.ibv_ack_async_event)(&raw mut event) };
        }
    }

    /// # Safety
    ///
    /// The event has been read and not yet acknowledged: until then the object that it names cannot be destroyed.
    unsafe fn file(&self, event: &AsyncEvent, port: u8) {
        match event.event_type {
            // SAFETY: these events carry a live completion queue, whose context word is a `Fault`.
            CQ_ERR => unsafe { (*(*event.element.cq).cq_context.cast::<Fault>()).set(CQ_ERR) },
            kind @ (QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR) => {
                // SAFETY: these events carry a live queue pair, whose context word is a `Fault`.
                unsafe { (*(*event.element.qp).qp_context.cast::<Fault>()).set(kind) }
            }
            DEVICE_FATAL => self.device.set(DEVICE_FATAL),
            kind @ (PORT_ERR | PORT_ACTIVE) => {
                // SAFETY: these events carry the number of a port.
                let concerned = unsafe { event.element.port_num };
                if concerned == c_int::from(port) {
                    if kind == PORT_ERR { self.port.set(PORT_ERR) } else { self.port.clear() }
                }
            }
            other => self.others.count(other),
        }
    }
}

/// Looks at the events of one queue pair, rarely.
#[derive(Debug)]
pub(crate) struct Watch {
    fault: Arc<Fault>,
    idle: u32,
}

impl Watch {
    /// Idle polls between two looks, each of which is a system call: some milliseconds of polling.
    const EVERY: u32 = 1 << 14;

    pub(crate) fn new(fault: &Arc<Fault>) -> Self {
        Self { fault: Arc::clone(fault), idle: 0 }
    }

    /// Counts a poll that found nothing; `true` when it is time to look.
    #[inline]
    pub(crate) fn idle(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        self.idle.is_multiple_of(Self::EVERY)
    }

    /// What is known to have happened.
    pub(crate) fn fault(&self) -> Option<CompletionError> {
        self.fault.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{AsyncElement, ibv_qp};

    #[test]
    fn every_fault_has_its_words() {
        for (event, what) in [
            (CQ_ERR, "completion queue"),
            (QP_FATAL, "queue pair"),
            (QP_ACCESS_ERR, "queue pair"),
            (DEVICE_FATAL, "device"),
            (PORT_ERR, "port"),
        ] {
            let fault = Fault::default();
            assert_eq!(fault.get(), None);
            fault.set(event);
            let error = fault.get().expect("set");
            assert_eq!((error.what, error.status), (what, event));
            assert!(error.reason.starts_with("IBV_EVENT_"), "{}", error.reason);
        }
    }

    #[test]
    fn a_port_is_forgiven_when_it_is_back() {
        let faults = DeviceFaults::default();
        let event = |event_type, port_num| AsyncEvent { element: AsyncElement { port_num }, event_type };
        // SAFETY: events of ports carry numbers of ports.
        let file = |event: AsyncEvent| unsafe { faults.file(&event, 1) };
        file(event(PORT_ERR, 2));
        assert_eq!(faults.get(), None, "another port");
        file(event(PORT_ERR, 1));
        assert_eq!(faults.get().map(|e| e.what), Some("port"));
        file(event(PORT_ACTIVE, 1));
        assert_eq!(faults.get(), None);
        file(event(DEVICE_FATAL, 0));
        file(event(PORT_ACTIVE, 1));
        assert_eq!(faults.get().map(|e| e.what), Some("device"));
    }

    #[test]
    fn an_event_that_breaks_nothing_is_counted() {
        const GID_CHANGE: c_int = 18;
        const NEWER: c_int = 4711;
        let faults = DeviceFaults::default();
        for event_type in [GID_CHANGE, NEWER] {
            let event = AsyncEvent { element: AsyncElement { port_num: 1 }, event_type };
            // SAFETY: such an event's element is not looked at.
            unsafe { faults.file(&event, 1) };
        }
        assert_eq!((faults.get(), faults.others().get()), (None, (2, 4711)));
    }

    #[test]
    fn a_queue_pair_s_event_reaches_its_fault() {
        let fault = Fault::default();
        // SAFETY: a C structure of integers, pointers and locks, of which only `qp_context` is used here.
        let mut qp: ibv_qp = unsafe { std::mem::zeroed() };
        qp.qp_context = (&raw const fault).cast_mut().cast();
        let event = AsyncEvent { element: AsyncElement { qp: &raw mut qp }, event_type: QP_FATAL };
        // SAFETY: the queue pair and its fault outlive the call.
        unsafe { DeviceFaults::default().file(&event, 1) };
        assert_eq!(fault.get().map(|e| e.status), Some(QP_FATAL));
    }

    #[test]
    fn looks_are_rare() {
        let mut watch = Watch::new(&Arc::default());
        let looks = (0..Watch::EVERY * 3).filter(|_| watch.idle()).count();
        assert_eq!(looks, 3);
    }
}
