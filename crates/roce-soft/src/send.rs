//! The sending half.

#![forbid(unsafe_code)]

use std::io;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use roce_core::{CompletionError, Memory, Mtu, PostError, RegionId, SendWr, UcSend};

use crate::arena::{Arena, Room};
use crate::counters::SoftStats;
use crate::device::Registration;
use crate::fault::Injector;
use crate::qp::{Requester, Segment, Segments, packets_of};
use crate::refusal::Refusal;
use crate::udp::Peer;
use crate::wire::icrc::Icrc;
use crate::wire::{Flow, ICRC_LEN, MAX_HEADER_LEN};

/// Bytes around a payload at most: headers, pad and ICRC.
pub(crate) const MAX_OVERHEAD: usize = MAX_HEADER_LEN + 3 + ICRC_LEN;

/// The two regions of a queue pair.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) rx: Memory,
    pub(crate) tx: Memory,
}

impl Regions {
    #[inline]
    fn get(&self, id: RegionId) -> &Memory {
        match id {
            RegionId::Rx => &self.rx,
            RegionId::Tx => &self.tx,
        }
    }
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub struct SoftSend {
    requester: Requester,
    regions: Regions,
    arena: Arena,
    mtu: Mtu,
    icrc: Icrc,
    link: Link,
    /// What passes packets on instead of the link itself.
    faults: Option<FaultyLink>,
}

impl SoftSend {
    pub(crate) fn new(
        requester: Requester,
        mtu: Mtu,
        regions: Regions,
        arena: Arena,
        link: Link,
        faults: Option<FaultyLink>,
    ) -> Self {
        let flow = Flow { src: link.registration.port.addr(), dst: link.to.addr };
        Self { requester, regions, arena, mtu, icrc: Icrc::new(flow), link, faults }
    }

    #[inline]
    fn build(&mut self, wr: &SendWr) {
        let segments = self.requester.message(&wr.verb, wr.sge.len);
        match segments.only() {
            Some(segment) => self.build_packet(wr, &segment),
            None => self.build_packets(wr, segments),
        }
    }

    #[inline(never)] // the rarer way, so that the other is short
    fn build_packets(&mut self, wr: &SendWr, segments: Segments) {
        for segment in segments {
            self.build_packet(wr, &segment);
        }
    }

    #[inline(always)] // into both ways, of which one knows more of the header
    fn build_packet(&mut self, wr: &SendWr, segment: &Segment) {
        let header = &segment.header;
        let (start, len) = (header.len(), segment.len as usize);
        let packet = self.arena.push(header.packet_len(len), header.bth.opcode.position().ends());
        header.emit(packet);
        let region = self.regions.get(wr.sge.region);
        let loaded = region.load(wr.sge.offset + u64::from(segment.offset), &mut packet[start..start + len]);
        debug_assert!(loaded.is_ok(), "stage has checked the bounds");
        if header.bth.pad != 0 {
            packet[start + len..].fill(0);
        }
        self.icrc.seal(packet);
    }

    #[inline]
    fn flush_plainly(&mut self) -> Result<(), (&'static str, io::Error)> {
        while self.arena.messages() != 0 {
            match self.link.send(self.arena.packets()) {
                Ok(0) => break,
                Ok(done) => self.arena.pop(done),
                Err(error) => {
                    self.arena.pop(1);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl UcSend for SoftSend {
    fn stage(&mut self, wr: &SendWr) -> Result<(), PostError> {
        let region = self.regions.get(wr.sge.region);
        let (offset, len) = (wr.sge.offset, wr.sge.len);
        if !region.contains(offset, len as usize) {
            return Err(PostError::OutOfRange { offset, len, region_len: region.len() });
        }
        let packets = packets_of(len, self.mtu) as usize;
        let bytes = len as usize + packets * MAX_OVERHEAD;
        match self.arena.room(packets, bytes) {
            Room::Free => {}
            Room::Full => return Err(PostError::QueueFull),
            Room::Never => return Err(too_long(len)),
        }
        self.arena.begin_message(packets, bytes);
        self.build(wr);
        self.link.stats.tx.messages.add(1);
        Ok(())
    }

    fn flush(&mut self) -> Result<usize, PostError> {
        let flushed = match &self.faults {
            None => self.flush_plainly(),
            Some(faults) => faults.pass(&mut self.arena),
        };
        flushed
            .map_err(|(call, source)| PostError::Os { call, source: explain(source, self.icrc.flow()) })?;
        Ok(self.arena.messages())
    }

    fn reap(&mut self) -> Result<(), CompletionError> {
        let Some(faults) = &self.faults else { return Ok(()) };
        faults.pump_unless_busy().map_err(|(_, e)| CompletionError {
            what: "send",
            reason: "the UDP socket failed",
            status: e.raw_os_error().unwrap_or(0),
            vendor: 0,
        })
    }
}

impl Drop for SoftSend {
    fn drop(&mut self) {
        if let Some(faults) = &self.faults {
            faults.release_all();
        }
    }
}

fn too_long(len: u32) -> PostError {
    let text = format!("a message of {len} bytes is more than a soft queue pair can stage; send it in parts");
    PostError::Os { call: "stage", source: io::Error::new(io::ErrorKind::InvalidInput, text) }
}

/// Adds what to do to the errors of which that is known.
fn explain(error: io::Error, flow: &Flow) -> io::Error {
    let advice = match error.raw_os_error() {
        Some(libc::EMSGSIZE) => "the path MTU is larger than the interface's MTU carries; take a smaller one",
        Some(libc::EACCES) => "the peer's address is a broadcast address, or a route prohibits it",
        Some(libc::EINVAL) => "the peer cannot be reached from this local address; 127.x reaches only 127.x",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error} ({flow}: {advice})"))
}

/// The way to the peer.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) registration: Arc<Registration>,
    pub(crate) to: Peer,
    pub(crate) stats: Arc<SoftStats>,
}

impl Link {
    /// Sends packets in order and says how many are done with: they have left, or the first one was refused and
    /// is lost. 0 when there is no room. An error is a refusal of the first one that all others would meet too.
    fn send<'a>(
        &self,
        packets: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) -> Result<usize, (&'static str, io::Error)> {
        let counters = &self.stats.tx;
        match self.registration.port.send(&self.to, packets) {
            Ok(0) => {
                counters.retries.add(1);
                Ok(0)
            }
            Ok(sent) => {
                counters.packets.add(sent as u64);
                Ok(sent)
            }
            Err((call, error)) => {
                let refusal = Refusal::of(&error);
                counters.discards.count(refusal, &error);
                if refusal == Refusal::Lasting { Err((call, error)) } else { Ok(1) }
            }
        }
    }
}

/// A link on which packets get lost, on purpose. Both halves of a queue pair hold it: a delayed packet leaves
/// with whatever is called next.
#[derive(Debug, Clone)]
pub(crate) struct FaultyLink {
    link: Link,
    injector: Arc<Mutex<Injector>>,
}

impl FaultyLink {
    pub(crate) fn new(link: Link, injector: Injector) -> Self {
        Self { link, injector: Arc::new(Mutex::new(injector)) }
    }

    /// Moves packets from the arena through the injector, as far as there is room.
    fn pass(&self, arena: &mut Arena) -> Result<(), (&'static str, io::Error)> {
        let now = Instant::now();
        let mut injector = self.injector.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.pump(&mut injector, now)?;
            match arena.packets().next() {
                Some(packet) if injector.has_room() => injector.take(packet, now, &self.link.stats.tx),
                _ => return Ok(()),
            }
            arena.pop(1);
        }
    }

    /// Sends what is due, unless the other half is at it.
    pub(crate) fn pump_unless_busy(&self) -> Result<(), (&'static str, io::Error)> {
        let mut injector = match self.injector.try_lock() {
            Ok(injector) => injector,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        self.pump(&mut injector, Instant::now())
    }

    /// Sends all that is held, due or not.
    fn release_all(&self) {
        let mut injector = self.injector.lock().unwrap_or_else(PoisonError::into_inner);
        injector.hurry();
        // Nobody is left to hear of an error; it is counted.
        let _ = self.pump(&mut injector, Instant::now());
    }

    fn pump(
        &self,
        injector: &mut MutexGuard<'_, Injector>,
        now: Instant,
    ) -> Result<(), (&'static str, io::Error)> {
        injector.pump(now, |packet| self.link.send(iter::once(packet)).map(|done| done == 1))
    }
}
