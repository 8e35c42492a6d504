//! Forward mode: each received slot goes back from where it landed.

use std::sync::Arc;

use roce_core::{UcRecv, UcSend};

use crate::error::Error;
use crate::rx::RxPath;
use crate::spin::{Backoff, SpinPolicy};
use crate::transceiver::Shared;
use crate::tx::TxPath;

pub(crate) struct ForwardLoop<S, R> {
    pub(crate) rx: RxPath<R>,
    pub(crate) tx: TxPath<S>,
    pub(crate) spin: SpinPolicy,
    pub(crate) shared: Arc<Shared>,
}

impl<S: UcSend, R: UcRecv> ForwardLoop<S, R> {
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let mut backoff = Backoff::new(self.spin);
        while !self.shared.is_stopped() {
            self.tx.progress()?;
            let Some(slot) = self.rx.next()? else {
                backoff.idle();
                continue;
            };
            backoff.reset();
            self.tx.stage_waiting(slot)?;
            if !self.rx.has_more() {
                self.tx.flush()?;
            }
        }
        Ok(())
    }
}
