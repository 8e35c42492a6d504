//! Forward mode: each received slot goes back from where it landed.

use roce_core::{UcRecv, UcSend};

use crate::error::Outcome;
use crate::mover::{Mover, STEP};
use crate::rx::RxPath;
use crate::tx::TxPath;

pub(crate) struct ForwardLoop<S, R> {
    rx: RxPath<R>,
    tx: TxPath<S>,
    /// Received, and the send queue had no room for it yet.
    held: Option<u32>,
}

impl<S: UcSend, R: UcRecv> ForwardLoop<S, R> {
    pub(crate) fn new(rx: RxPath<R>, tx: TxPath<S>) -> Self {
        Self { rx, tx, held: None }
    }

    fn next(&mut self) -> Outcome<Option<u32>> {
        if self.held.is_some() { Ok(self.held.take()) } else { self.rx.next() }
    }
}

impl<S: UcSend, R: UcRecv> Mover for ForwardLoop<S, R> {
    #[inline(always)] // into the thread that runs it alone
    fn step(&mut self) -> Outcome<bool> {
        self.tx.progress()?;
        let mut staged = 0;
        while staged < STEP
            && let Some(slot) = self.next()?
        {
            if !self.tx.stage(slot)? {
                self.held = Some(slot);
                break;
            }
            staged += 1;
            if !self.rx.has_more() {
                break;
            }
        }
        if staged > 0 {
            self.tx.flush()?;
        }
        Ok(staged > 0)
    }
}
