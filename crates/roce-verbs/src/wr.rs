//! Sends that wait to be posted together, in arrays that are made once.

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};

use roce_core::{PostError, SendWr, Verb};

use crate::mem::Span;
use crate::qp::QpHandle;
use crate::staging::Staging;
use crate::sys::{
    self, Zeroed, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode, imm_data_invalidated_rkey_union_t,
};
use crate::window::SendWindow;

const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

/// Staged sends, posted as one chain.
pub(crate) struct SendBatch {
    requests: Box<[ibv_send_wr]>,
    entries: Box<[ibv_sge]>,
    /// A place of `max_inline` bytes for each request.
    inline: Box<[u8]>,
    max_inline: usize,
    staging: Staging,
    /// The staged ones are `first..end`: those before were posted when the device had no room for the rest.
    first: usize,
    end: usize,
}

// SAFETY: the pointers in the requests lead into the other arrays, and are used only while they are set anew.
unsafe impl Send for SendBatch {}

impl std::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendBatch")
            .field("staged", &self.len())
            .field("max_inline", &self.max_inline)
            .finish_non_exhaustive()
    }
}

impl SendBatch {
    /// For `capacity` sends. Those up to `max_inline` bytes are posted inline, and longer ones from `staging`
    /// where they fit.
    pub(crate) fn new(capacity: u32, max_inline: u32, staging: Staging) -> Self {
        let (capacity, max_inline) = (capacity.max(1) as usize, max_inline as usize);
        Self {
            requests: (0..capacity).map(|_| ibv_send_wr::zeroed()).collect(),
            entries: vec![ibv_sge { addr: 0, length: 0, lkey: 0 }; capacity].into(),
            inline: vec![0; capacity * max_inline].into(),
            max_inline,
            staging,
            first: 0,
            end: 0,
        }
    }

    #[cfg(feature = "raw")]
    pub(crate) fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// Sends staged and not posted.
    pub(crate) fn len(&self) -> usize {
        self.end - self.first
    }

    pub(crate) fn clear(&mut self) {
        (self.first, self.end) = (0, 0);
    }

    /// Stages a send of bytes of `span`, which will have that number.
    #[inline]
    pub(crate) fn push(&mut self, number: u64, span: &Span, wr: &SendWr) -> Result<(), PostError> {
        let at = self.end;
        if at == self.requests.len() {
            return Err(PostError::QueueFull);
        }
        let (offset, len) = (wr.sge.offset, wr.sge.len);
        let mut entry = span.sge(offset, len)?;
        let is_inline = len > 0 && len as usize <= self.max_inline;
        if is_inline {
            let place = at * self.max_inline;
            span.load(offset, &mut self.inline[place..place + len as usize])?;
        } else if let Some(copy) = self.staging.copy(number, span, wr.sge)? {
            entry = copy;
        }
        self.entries[at] = entry;
        let request = &mut self.requests[at];
        request.num_sge = c_int::from(len > 0);
        request.send_flags = if is_inline { INLINE } else { 0 };
        set_verb(request, wr.verb);
        self.end += 1;
        Ok(())
    }

    /// Posts all that is staged. After an error the sends from the refused one on are still staged.
    #[inline]
    pub(crate) fn post(&mut self, qp: &QpHandle, window: &mut SendWindow) -> io::Result<()> {
        let Some(chain) = self.link(window) else { return Ok(()) };
        // SAFETY: `link` made a chain of staged requests: inline bytes lie in our own array, all others in a
        // span, whose region, the staging memory among them, the queue pair keeps registered.
        match unsafe { qp.post_send(chain) } {
            Ok(()) => {
                window.add_posted(self.len() as u64);
                self.clear();
                Ok(())
            }
            Err((bad, error)) => {
                self.drop_posted(bad, window);
                Err(error)
            }
        }
    }

    /// Numbers the staged requests and chains them.
    #[inline]
    fn link(&mut self, window: &SendWindow) -> Option<NonNull<ibv_send_wr>> {
        let (first, end) = (self.first, self.end);
        if first == end {
            return None;
        }
        let requests = self.requests.as_mut_ptr();
        let entries = self.entries.as_mut_ptr();
        let inline = self.inline.as_mut_ptr();
        for at in first..end {
            let number = window.number((at - first) as u64);
            // SAFETY: `first..end` lies in each array, and no reference to them is alive.
            unsafe {
                let (request, entry) = (&mut *requests.add(at), &mut *entries.add(at));
                if request.send_flags & INLINE != 0 {
                    entry.addr = inline.add(at * self.max_inline).expose_provenance() as u64;
                }
                request.send_flags &= !SIGNALED;
                if window.is_signalled(number) {
                    request.send_flags |= SIGNALED;
                }
                request.wr_id = number;
                request.sg_list = entry;
                request.next = if at + 1 < end { requests.add(at + 1) } else { ptr::null_mut() };
            }
        }
        // SAFETY: `first` lies in the array.
        NonNull::new(unsafe { requests.add(first) })
    }

    /// Takes out what was posted before the refused request.
    #[cold]
    fn drop_posted(&mut self, refused: *mut ibv_send_wr, window: &mut SendWindow) {
        let bytes = refused.addr().wrapping_sub(self.requests.as_ptr().addr());
        let at = bytes / size_of::<ibv_send_wr>();
        if (self.first..self.end).contains(&at) {
            window.add_posted((at - self.first) as u64);
            self.first = at;
        }
    }
}

#[inline]
pub(crate) fn set_verb(request: &mut ibv_send_wr, verb: Verb) {
    let (opcode, imm) = match verb {
        Verb::Send { imm: None } => (ibv_wr_opcode::IBV_WR_SEND, 0),
        Verb::Send { imm: Some(imm) } => (ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, imm),
        Verb::Write { imm: None, .. } => (ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0),
        Verb::Write { imm: Some(imm), .. } => (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, imm),
    };
    if let Verb::Write { addr, rkey, .. } = verb {
        request.wr.rdma = sys::rdma_t { remote_addr: addr, rkey: rkey.get() };
    }
    request.opcode = opcode;
    request.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t { imm_data: imm.to_be() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::tests::Block;
    use crate::staging::StagingMemory;
    use roce_core::{DmaRegion, RegionId, Rkey, Sge};
    use std::sync::Arc;

    fn wr(offset: u64, len: u32, verb: Verb) -> SendWr {
        SendWr { sge: Sge { region: RegionId::Tx, offset, len }, verb }
    }

    /// As for a region of as many bytes for `depth` sends.
    fn staging(bytes: usize, depth: u32) -> Staging {
        let memory: Arc<dyn DmaRegion> = Arc::new(StagingMemory::for_region(bytes, depth).expect("mapped"));
        Staging::new(Span::new(&memory, STAGED, LKEY), depth)
    }

    /// Where the staging memory is for the device, and its key.
    const STAGED: u64 = 0x10_0000;
    const LKEY: u32 = 4;

    const SEND: Verb = Verb::Send { imm: None };

    /// What a driver would see of a chain: number, opcode, flags, and the entry.
    fn walk(chain: Option<NonNull<ibv_send_wr>>) -> Vec<(u64, u32, u32, Option<ibv_sge>)> {
        let mut seen = Vec::new();
        let mut at = chain.map_or(ptr::null_mut(), NonNull::as_ptr);
        while !at.is_null() {
            // SAFETY: `link` has just made the chain, and its batch is alive.
            let request = unsafe { &*at };
            // SAFETY: the batch's entries are alive too, and there is one where there are bytes.
            let entry = (request.num_sge == 1).then(|| unsafe { *request.sg_list });
            seen.push((request.wr_id, request.opcode, request.send_flags, entry));
            at = request.next;
        }
        seen
    }

    #[test]
    fn a_chain_has_all_that_was_staged() {
        let span = Span::new(&Block::region(), 0x1000, 9);
        let mut batch = SendBatch::new(4, 0, staging(256, 4));
        assert!(batch.link(&SendWindow::new(4)).is_none(), "nothing staged");
        let write = Verb::Write { addr: 64, rkey: Rkey::new(5), imm: Some(0x0102) };
        batch.push(1, &span, &wr(0, 65, SEND)).expect("room");
        batch.push(2, &span, &wr(128, 32, write)).expect("room");
        batch.push(3, &span, &wr(256, 0, SEND)).expect("room");
        let chain = batch.link(&SendWindow::new(4));
        // SAFETY: the second request of the chain above; it is a WRITE.
        let (rdma, imm) = unsafe {
            let second = &*(*chain.expect("three").as_ptr()).next;
            (second.wr.rdma, second.imm_data_invalidated_rkey_union.imm_data)
        };
        assert_eq!((rdma.remote_addr, rdma.rkey, imm), (64, 5, 0x0102_u32.to_be()));
        let seen = walk(chain);
        assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(seen[0].1, ibv_wr_opcode::IBV_WR_SEND);
        assert_eq!(seen[1].1, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        assert_eq!(seen.iter().map(|s| s.2).collect::<Vec<_>>(), [0, SIGNALED, 0], "one in depth / 2");
        let entries: Vec<_> = seen.iter().map(|s| s.3.map(|e| (e.addr, e.length, e.lkey))).collect();
        assert_eq!(entries, [Some((0x1000, 65, 9)), Some((STAGED + 128, 32, LKEY)), None]);
    }

    #[test]
    fn short_messages_are_copied_when_staged() {
        let span = Span::new(&Block::region(), 0, 9);
        let mut batch = SendBatch::new(2, 16, staging(128, 2));
        batch.push(1, &span, &wr(10, 16, SEND)).expect("room");
        batch.push(2, &span, &wr(10, 17, SEND)).expect("room");
        let seen = walk(batch.link(&SendWindow::new(64)));
        assert_eq!(seen[0].2 & INLINE, INLINE);
        let entry = seen[0].3.expect("bytes");
        let at = ptr::with_exposed_provenance::<u8>(usize::try_from(entry.addr).expect("an address"));
        // SAFETY: an inline entry points to our own bytes.
        let bytes = unsafe { std::slice::from_raw_parts(at, entry.length as usize) };
        assert_eq!(bytes, (10..26).collect::<Vec<u8>>());
        assert_eq!(seen[1].2 & INLINE, 0, "one byte too long");
        assert_eq!(
            seen[1].3.map(|e| (e.addr, e.length, e.lkey)),
            Some((STAGED, 17, LKEY)),
            "the second place of 2"
        );
    }

    #[test]
    fn a_refused_request_and_those_behind_it_stay() {
        let span = Span::new(&Block::region(), 0, 9);
        let mut window = SendWindow::new(4);
        let mut batch = SendBatch::new(4, 0, staging(256, 4));
        for ahead in 0..4 {
            batch.push(window.number(ahead), &span, &wr(ahead, 1, SEND)).expect("room");
        }
        assert!(matches!(batch.push(5, &span, &wr(0, 1, SEND)), Err(PostError::QueueFull)));
        batch.link(&window);
        let third = &raw mut batch.requests[2];
        batch.drop_posted(third, &mut window);
        assert_eq!((batch.len(), window.posted()), (2, 2));
        let again = walk(batch.link(&window));
        assert_eq!(
            again.iter().map(|s| (s.0, s.3.map(|e| e.addr))).collect::<Vec<_>>(),
            [(3, Some(STAGED + 3 * 64)), (4, Some(STAGED))],
            "in the places that they were copied to"
        );
        batch.drop_posted(ptr::null_mut(), &mut window);
        assert_eq!((batch.len(), window.posted()), (2, 2), "a driver that does not say which");
    }

    #[test]
    fn out_of_the_region_is_refused_and_leaves_nothing() {
        let span = Span::new(&Block::region(), 0, 9);
        let mut batch = SendBatch::new(4, 64, staging(256, 4));
        assert!(matches!(batch.push(1, &span, &wr(250, 7, SEND)), Err(PostError::OutOfRange { .. })));
        assert_eq!(batch.len(), 0);
    }
}
