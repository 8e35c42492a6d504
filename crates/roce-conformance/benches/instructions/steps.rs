//! The steps that count whole, never inlined into the loops that drive them.

use cudaq_realtime_cpu_roce_transport as capi;
use roce_core::{RecvCompletion, RecvWr, SendWr, UcQp, UcRecv, UcSend};
use roce_dispatch::UnifiedLoop;
use roce_ring::{Consumer, Producer};
use roce_soft::wire::icrc::Icrc;
use roce_soft::wire::{Header, Packet};
use roce_soft::{SoftRecv, SoftSend};
use roce_transport::Unified;

/// The two calls of a round trip from C, as a C program finds them.
pub(crate) type Publish = unsafe extern "C" fn(capi::Handle, u32) -> i32;
pub(crate) type Poll = unsafe extern "C" fn(capi::Handle, *mut u32) -> i32;

#[inline(never)]
pub(crate) fn publish<Q: UcQp>(end: &mut Unified<Q>, slot: u32) {
    end.tx_publish(slot).expect("the link is open");
}

#[inline(never)]
pub(crate) fn poll<Q: UcQp>(end: &mut Unified<Q>) -> Option<u32> {
    end.rx_poll().expect("the link is open")
}

/// As little as a service can do: each message is answered with what stands in its TX slot.
#[inline(never)]
pub(crate) fn answer_all<Q: UcQp>(service: &mut Unified<Q>) -> usize {
    let mut done = 0;
    for _ in 0..service.geometry().num_pages() {
        let Some(slot) = service.rx_poll().expect("the link is open") else { break };
        service.tx_publish(slot).expect("the link is open");
        done += 1;
    }
    done
}

#[inline(never)]
pub(crate) fn dispatch_all<Q: UcQp>(service: &mut UnifiedLoop<Unified<Q>>) -> usize {
    service.poll().expect("the link is open")
}

#[inline(never)]
pub(crate) fn hand_off(producer: &Producer, consumer: &mut Consumer, slot: u32) -> Option<u32> {
    producer.publish(slot);
    let found = consumer.next_published()?;
    consumer.claim(found);
    Some(found)
}

#[inline(never)]
pub(crate) fn build(header: &Header, icrc: &mut Icrc, payload: &[u8], packet: &mut [u8]) {
    header.emit(packet);
    packet[header.len()..][..payload.len()].copy_from_slice(payload);
    icrc.seal(packet);
}

#[inline(never)]
pub(crate) fn check<'a>(icrc: &mut Icrc, packet: &'a [u8]) -> Option<Packet<'a>> {
    icrc.verify(packet)?;
    Packet::parse(packet).ok()
}

#[inline(never)]
pub(crate) fn soft_send(half: &mut SoftSend, wr: &SendWr) {
    half.send(wr).expect("room on the loopback interface");
}

/// One look, and the receive of what it found posted again.
#[inline(never)]
pub(crate) fn soft_receive(half: &mut SoftRecv, wr: RecvWr) -> Option<RecvCompletion> {
    let mut batch = [RecvCompletion::EMPTY; 16];
    let count = half.poll(&mut batch).expect("an open socket");
    if count == 0 {
        return None;
    }
    half.post_recv(wr).expect("room for what was taken");
    Some(batch[0])
}
