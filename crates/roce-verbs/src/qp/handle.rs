//! The queue pair that libibverbs knows, with all that it uses.

use std::ffi::c_int;
use std::io;
use std::iter;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use roce_core::{CompletionError, PostError, Qpn, RecvWr};

use crate::context::{Context, torn_down};
use crate::cq::Cq;
use crate::error::{Place, VerbsError};
use crate::events::{Fault, Watch};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::attr::Change;
use crate::sys::{self, Zeroed, ibv_qp, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_recv_wr, ibv_send_wr};

/// What a queue pair uses, in the order in which it is given back.
#[derive(Debug)]
pub(crate) struct Resources {
    pub(crate) rx: Mr,
    pub(crate) tx: Mr,
    pub(crate) staging: Mr,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) fault: Arc<Fault>,
}

/// What a queue pair is asked to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) recv: u32,
    /// Bytes of the longest message that is posted inline.
    pub(crate) inline: u32,
}

/// A UC queue pair, whatever its state. Dropping it destroys it.
#[derive(Debug)]
pub(crate) struct QpHandle {
    raw: NonNull<ibv_qp>,
    qpn: Qpn,
    port: u8,
    resources: Arc<Resources>,
}

// SAFETY: libibverbs allows any thread to post to a queue pair or change it, and locks against several at once.
unsafe impl Send for QpHandle {}
// SAFETY: the same locks allow shared use from several threads.
unsafe impl Sync for QpHandle {}

impl QpHandle {
    /// In RESET. Also says how long a message may be to be posted inline: as long as asked, or what the device
    /// can do.
    pub(crate) fn create(resources: Resources, port: u8, depths: Depths) -> Result<(Self, u32), VerbsError> {
        let mut refused = None;
        for inline in inline_limits(depths.inline) {
            match create(&resources, Depths { inline, ..depths }) {
                Ok((raw, given)) => {
                    // SAFETY: a queue pair that was just made.
                    let qpn = Qpn::from_low_bits(unsafe { (*raw.as_ptr()).qp_num });
                    let qp = Self { raw, qpn, port, resources: Arc::new(resources) };
                    return Ok((qp, given.min(inline)));
                }
                Err(error) => {
                    let other_limit_may_do = may_be_inline(&error);
                    refused = Some(error);
                    if !other_limit_may_do {
                        break;
                    }
                }
            }
        }
        let source = refused.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        let context = resources.pd.context();
        Err(VerbsError::CreateQp {
            at: context.at(port),
            send_depth: depths.send,
            recv_depth: depths.recv,
            max: context.attributes().ok().map(|attr| attr.max_qp_wr),
            source,
        })
    }

    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(crate) fn at(&self) -> Place {
        self.context().at(self.port)
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.resources.pd.context()
    }

    pub(crate) fn port(&self) -> u8 {
        self.port
    }

    pub(crate) fn rx(&self) -> &Mr {
        &self.resources.rx
    }

    pub(crate) fn tx(&self) -> &Mr {
        &self.resources.tx
    }

    pub(crate) fn staging(&self) -> &Mr {
        &self.resources.staging
    }

    pub(crate) fn send_cq(&self) -> &Arc<Cq> {
        &self.resources.send_cq
    }

    pub(crate) fn recv_cq(&self) -> &Arc<Cq> {
        &self.resources.recv_cq
    }

    pub(crate) fn fault(&self) -> &Arc<Fault> {
        &self.resources.fault
    }

    pub(crate) fn modify(&self, mut change: Change) -> io::Result<()> {
        // SAFETY: a live queue pair, and attributes that the mask matches.
        let ret = unsafe {
            (self.context().verbs().ibv_modify_qp)(self.raw.as_ptr(), &raw mut change.attr, change.mask)
        };
        sys::check(ret)
    }

    /// `ibv_post_send`; an error comes with the first request that was refused.
    ///
    /// # Safety
    ///
    /// A chain of valid requests: inline bytes are readable now, others lie in this queue pair's regions.
    #[inline]
    pub(crate) unsafe fn post_send(
        &self,
        chain: NonNull<ibv_send_wr>,
    ) -> Result<(), (*mut ibv_send_wr, io::Error)> {
        // SAFETY: the queue pair, its context and its regions live as long as `self`; the rest is promised.
        unsafe { sys::post_send(self.raw, chain) }
    }

    /// Posts a receive into the RX region.
    #[inline]
    pub(crate) fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        let mut entry = self.resources.rx.span().sge(wr.offset, wr.len)?;
        let mut request = ibv_recv_wr {
            wr_id: u64::from(wr.id),
            next: ptr::null_mut(),
            sg_list: &raw mut entry,
            num_sge: c_int::from(wr.len > 0),
        };
        // SAFETY: the queue pair and its context live as long as `self`; the one entry lies in the RX region,
        // which the queue pair keeps registered.
        match unsafe { sys::post_recv(self.raw, &mut request) } {
            Ok(()) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => Err(PostError::QueueFull),
            Err(source) => Err(PostError::Os { call: "ibv_post_recv", source }),
        }
    }

    /// Takes the events that wait, and fails if one of them, or an earlier one, makes this queue pair useless. A
    /// system call.
    #[cold]
    pub(crate) fn collect_events(&self, watch: &Watch) -> Result<(), CompletionError> {
        let faults = self.context().collect_events(self.port);
        match watch.fault().or_else(|| faults.get()) {
            None => Ok(()),
            Some(fault) => Err(fault),
        }
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        // SAFETY: both halves are gone, so nobody uses the queue pair now.
        let ret = unsafe { (self.context().verbs().ibv_destroy_qp)(self.raw.as_ptr()) };
        if !torn_down("ibv_destroy_qp", self.context().name(), ret) {
            // It may still read and write its regions: nothing that it uses may go.
            std::mem::forget(Arc::clone(&self.resources));
        }
    }
}

fn create(resources: &Resources, depths: Depths) -> io::Result<(NonNull<ibv_qp>, u32)> {
    let mut attr = ibv_qp_init_attr::zeroed();
    attr.qp_context = Arc::as_ptr(&resources.fault).cast_mut().cast();
    attr.send_cq = resources.send_cq.raw().as_ptr();
    attr.recv_cq = resources.recv_cq.raw().as_ptr();
    attr.qp_type = ibv_qp_type::IBV_QPT_UC;
    attr.cap = ibv_qp_cap {
        max_send_wr: depths.send,
        max_recv_wr: depths.recv,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: depths.inline,
    };
    // SAFETY: a live domain and completion queues, which the caller keeps as long as the queue pair, as it does
    // the target of the context word.
    let qp =
        unsafe { (resources.pd.context().verbs().ibv_create_qp)(resources.pd.raw().as_ptr(), &raw mut attr) };
    sys::check_ptr(qp).map(|raw| (raw, attr.cap.max_inline_data))
}

/// The limits to try, the largest first: a device that cannot do one refuses the whole queue pair.
fn inline_limits(asked: u32) -> impl Iterator<Item = u32> {
    const SMALLEST: u32 = 32;
    iter::successors(Some(asked), |&last| (last > 0).then_some(if last > SMALLEST { last / 2 } else { 0 }))
}

fn may_be_inline(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM | libc::ERANGE | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_limits_fall_to_none() {
        assert_eq!(inline_limits(256).collect::<Vec<_>>(), [256, 128, 64, 32, 0]);
        assert_eq!(inline_limits(40).collect::<Vec<_>>(), [40, 20, 0]);
        assert_eq!(inline_limits(0).collect::<Vec<_>>(), [0]);
    }
}
