//! A link that does what a script says, and keeps what was done with it.
#![allow(dead_code)] // each user takes its part

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use roce_core::{
    CompletionError, ConnectError, Device, Mtu, PeerEndpoint, PostError, QpAttr, Qpn, Received,
    RecvCompletion, RecvKind, RecvWr, Rkey, SendWr, UcQp, UcRecv, UcSend, WireStats,
};

type Look = Box<dyn FnMut(&[SendWr]) + Send>;

/// What the link is to do, and what was done with it.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) refuse_opening: u32,
    pub(crate) refuse_connect: u32,
    pub(crate) completions: VecDeque<RecvCompletion>,
    /// Completions whose bytes are in memory before the link is asked.
    pub(crate) landed: VecDeque<RecvCompletion>,
    /// There are always more: as many WRITEs as are asked for, to 64 slots in turn.
    pub(crate) endless: Option<u32>,
    /// How often it was asked.
    pub(crate) polls: u32,
    pub(crate) recv_error: Option<CompletionError>,
    pub(crate) send_error: Option<CompletionError>,
    /// Room in the send queue; `reap` gives it back when `reap_frees`.
    pub(crate) room: usize,
    pub(crate) reap_frees: usize,
    /// Flushes that leave everything waiting.
    pub(crate) stuck_flushes: u32,
    /// Called with what a flush sends.
    pub(crate) at_flush: Option<Look>,
    pub(crate) staged: Vec<SendWr>,
    pub(crate) sent: Vec<SendWr>,
    pub(crate) receives: Vec<RecvWr>,
}

impl Script {
    fn endless_into(&mut self, out: &mut [RecvCompletion]) -> Option<usize> {
        let next = self.endless.as_mut()?;
        for slot in out.iter_mut() {
            *slot = write(0, *next % 64);
            *next += 1;
        }
        assert!(*next < 1 << 20, "it is asked for ever");
        Some(out.len())
    }
}

#[derive(Clone)]
pub(crate) struct Link(pub(crate) Arc<Mutex<Script>>);

impl Link {
    pub(crate) fn script<T>(&self, f: impl FnOnce(&mut Script) -> T) -> T {
        f(&mut self.0.lock().expect("no panic under the lock"))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the script says no")]
pub(crate) struct Refused;

impl Device for Link {
    type Qp = Self;
    type Error = Refused;

    fn create_qp(&self, _attr: &QpAttr) -> Result<Self, Refused> {
        self.script(|s| match s.refuse_opening {
            0 => Ok(self.clone()),
            n => {
                s.refuse_opening = n - 1;
                Err(Refused)
            }
        })
    }
}

struct NoStats;

impl WireStats for NoStats {
    fn snapshot(&self) -> Vec<(&'static str, u64)> {
        vec![("scripted", 1)]
    }
}

impl UcQp for Link {
    type Send = Self;
    type Recv = Self;
    type Error = Refused;

    fn qpn(&self) -> Qpn {
        Qpn::from_low_bits(7)
    }

    fn rkey(&self) -> Rkey {
        Rkey::new(9)
    }

    fn local_ip(&self) -> Ipv4Addr {
        Ipv4Addr::LOCALHOST
    }

    fn path_mtu(&self) -> Mtu {
        Mtu::B1024
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        Arc::new(NoStats)
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.script(|s| s.receives.push(wr));
        Ok(())
    }

    fn connect(self, _peer: &PeerEndpoint) -> Result<(Self, Self), ConnectError<Self>> {
        let refuse = self.script(|s| match s.refuse_connect {
            0 => false,
            n => {
                s.refuse_connect = n - 1;
                true
            }
        });
        if refuse { Err(ConnectError { qp: self, error: Refused }) } else { Ok((self.clone(), self)) }
    }
}

impl UcSend for Link {
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        self.script(|s| {
            s.room = s.room.checked_sub(1).ok_or(PostError::QueueFull)?;
            s.staged.push(*wr);
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<usize, PostError> {
        self.script(|s| {
            if s.stuck_flushes > 0 {
                s.stuck_flushes -= 1;
                return Ok(s.staged.len());
            }
            let mut staged = std::mem::take(&mut s.staged);
            if let Some(look) = &mut s.at_flush {
                look(&staged);
            }
            s.sent.append(&mut staged);
            Ok(0)
        })
    }

    fn reap(&mut self) -> Result<(), CompletionError> {
        self.script(|s| {
            s.room += s.reap_frees;
            s.send_error.take().map_or(Ok(()), Err)
        })
    }
}

impl UcRecv for Link {
    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        UcQp::post_recv(self, wr)
    }

    fn poll(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.script(|s| {
            s.polls += 1;
            if let Some(error) = s.recv_error.take() {
                return Err(error);
            }
            Ok(s.endless_into(out).unwrap_or_else(|| give(&mut s.completions, out)))
        })
    }

    fn poll_landed(&mut self, out: &mut [RecvCompletion]) -> Result<usize, CompletionError> {
        self.script(|s| Ok(s.endless_into(out).unwrap_or_else(|| give(&mut s.landed, out))))
    }
}

fn give(from: &mut VecDeque<RecvCompletion>, out: &mut [RecvCompletion]) -> usize {
    let n = out.len().min(from.len());
    out.iter_mut().zip(from.drain(..n)).for_each(|(slot, c)| *slot = c);
    n
}

pub(crate) const PEER: PeerEndpoint =
    PeerEndpoint { qpn: Qpn::from_low_bits(3), rkey: Some(Rkey::new(4)), ip: Ipv4Addr::LOCALHOST };

pub(crate) fn write(id: u32, imm: u32) -> RecvCompletion {
    RecvCompletion { id, result: Ok(Received::new(RecvKind::WriteWithImm, 16, Some(imm))) }
}

pub(crate) fn send(id: u32) -> RecvCompletion {
    RecvCompletion { id, result: Ok(Received::new(RecvKind::Send, 16, None)) }
}
