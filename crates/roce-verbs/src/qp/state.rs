//! The states of a queue pair, as types.

use std::io;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use roce_core::{Gid, Psn};

use crate::error::{RtrError, VerbsError};
use crate::qp::attr::{self, Change, Route};
use crate::qp::handle::{Depths, QpHandle, Resources};

/// Takes nothing.
#[derive(Debug)]
pub(crate) enum Reset {}
/// Takes receives.
#[derive(Debug)]
pub(crate) enum Init {}
/// Receives.
#[derive(Debug)]
pub(crate) enum Rtr {}
/// Receives and sends.
#[derive(Debug)]
pub(crate) enum Rts {}

/// A queue pair in state `S`.
#[derive(Debug)]
pub(crate) struct Qp<S> {
    handle: Arc<QpHandle>,
    state: PhantomData<S>,
}

/// A refused change of state, with the queue pair as it was.
pub(crate) type Refused<S> = Box<(Qp<S>, VerbsError)>;

impl<S> Qp<S> {
    pub(crate) fn handle(&self) -> &Arc<QpHandle> {
        &self.handle
    }

    fn to<T>(self, change: Change) -> Result<Qp<T>, Refused<S>> {
        let to = change.to;
        match self.handle.modify(change) {
            Ok(()) => Ok(self.now()),
            Err(source) => {
                let error = VerbsError::ModifyQp { at: self.handle.at(), qpn: self.handle.qpn(), to, source };
                Err(Box::new((self, error)))
            }
        }
    }

    fn now<T>(self) -> Qp<T> {
        Qp { handle: self.handle, state: PhantomData }
    }
}

impl Qp<Reset> {
    /// Also gives the limit of inline messages, in bytes.
    pub(crate) fn create(resources: Resources, port: u8, depths: Depths) -> Result<(Self, u32), VerbsError> {
        let (handle, inline) = QpHandle::create(resources, port, depths)?;
        Ok((Self { handle: Arc::new(handle), state: PhantomData }, inline))
    }

    pub(crate) fn init(self) -> Result<Qp<Init>, Refused<Reset>> {
        let port = self.handle.port();
        self.to(attr::init(port))
    }
}

impl Qp<Init> {
    pub(crate) fn ready_to_receive(
        self,
        route: &Route,
        own_gid: Gid,
        peer: Ipv4Addr,
    ) -> Result<Qp<Rtr>, Refused<Init>> {
        let modify = || self.handle.modify(attr::ready_to_receive(route));
        match retry_timed_out(modify, || thread::sleep(PAUSE)) {
            Ok(()) => Ok(self.now()),
            Err((attempts, source)) => {
                let error = VerbsError::ReadyToReceive(Box::new(RtrError {
                    at: self.handle.at(),
                    qpn: self.handle.qpn(),
                    peer_qpn: route.peer_qpn,
                    peer,
                    gid_index: u32::from(route.gid_index),
                    gid: own_gid,
                    mtu: route.mtu,
                    attempts,
                    source,
                }));
                Err(Box::new((self, error)))
            }
        }
    }
}

impl Qp<Rtr> {
    pub(crate) fn ready_to_send(self, first: Psn) -> Result<Qp<Rts>, Refused<Rtr>> {
        self.to(attr::ready_to_send(first))
    }

    /// To INIT by way of RESET, without receives.
    pub(crate) fn start_again(self) -> Result<Qp<Init>, Refused<Init>> {
        match self.to::<Reset>(attr::reset()) {
            Ok(reset) => reset.init().map_err(|refused| broken(*refused)),
            Err(refused) => Err(broken(*refused)),
        }
    }
}

fn broken<S>((qp, error): (Qp<S>, VerbsError)) -> Refused<Init> {
    Box::new((qp.now(), error))
}

/// Tries after the first, while a neighbour is being resolved.
const RETRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Repeats what times out. An error comes with how often it was tried.
fn retry_timed_out(
    mut attempt: impl FnMut() -> io::Result<()>,
    mut pause: impl FnMut(),
) -> Result<(), (u32, io::Error)> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match attempt() {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ETIMEDOUT) && attempts <= RETRIES => pause(),
            Err(e) => return Err((attempts, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(errno_until: impl Fn(u32) -> Option<i32>) -> (Result<(), (u32, Option<i32>)>, u32) {
        let (mut attempts, mut pauses) = (0, 0);
        let attempt = || {
            attempts += 1;
            errno_until(attempts).map_or(Ok(()), |e| Err(io::Error::from_raw_os_error(e)))
        };
        let result = retry_timed_out(attempt, || pauses += 1);
        (result.map_err(|(n, e)| (n, e.raw_os_error())), pauses)
    }

    #[test]
    fn only_timeouts_are_retried() {
        assert_eq!(tried(|_| None), (Ok(()), 0));
        assert_eq!(tried(|n| (n < 4).then_some(libc::ETIMEDOUT)), (Ok(()), 3));
        assert_eq!(tried(|_| Some(libc::ETIMEDOUT)), (Err((6, Some(libc::ETIMEDOUT))), 5));
        assert_eq!(tried(|_| Some(libc::EINVAL)), (Err((1, Some(libc::EINVAL))), 0));
    }
}
