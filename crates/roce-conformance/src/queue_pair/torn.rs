//! Messages of several packets, some of which get lost.

use roce_core::{Mtu, Received, RecvCompletion, RecvKind, UcQp, Verb};

use super::{End, connect, queue_pair};
use crate::links::{LossyLinks, Side};
use crate::memory::content;
use crate::rng::Rng;

const MESSAGES: u32 = 400;
const PACKET: u64 = 256;

/// Sends messages of one to five packets, of which a share is lost, and knows of each whether it was torn.
fn assert_torn_ones_are_dropped<L: LossyLinks>(
    links: &L,
    kind: RecvKind,
    verb: impl Fn(&End<<L::Device as roce_core::Device>::Qp>, u32) -> Verb,
) where
    <L::Device as roce_core::Device>::Qp: UcQp,
{
    let faults = "drop=0.12,seed=11".parse().expect("faults");
    let lossy = links.lossy_device(Side::A, faults);
    let mtu = Some(Mtu::B256);
    let (mut a, mut b) = connect(queue_pair(&lossy, mtu), queue_pair(&links.device(Side::B), mtu));
    let mut rng = Rng::new(5);
    let (mut whole, mut torn) = (0, 0);
    b.post(0, 1024, 2048);
    for n in 0..MESSAGES {
        let len = u32::try_from(rng.below(5 * PACKET)).expect("short");
        let bytes = content(n.into(), len as usize);
        let lost = a.counter(links.lost_counter());
        a.say(0, &bytes, verb(&a, n));
        if a.counter(links.lost_counter()) != lost {
            torn += 1;
            continue;
        }
        // Had a torn one completed, it would come first.
        let result = Ok(Received::new(kind, len, Some(n)));
        assert_eq!(b.next(), RecvCompletion { id: whole, result });
        assert_eq!(b.rx.get(1024, len as usize), bytes);
        whole += 1;
        b.post(whole, 1024, 2048);
    }
    assert_eq!(b.poll(), None);
    assert!(whole > 50 && torn > 50, "{whole} whole, {torn} torn: too few to tell");
}

pub(crate) fn a_torn_send_is_dropped_whole<L: LossyLinks>(links: &L) {
    assert_torn_ones_are_dropped(links, RecvKind::Send, |_, n| Verb::Send { imm: Some(n) });
}

pub(crate) fn a_torn_write_is_dropped_whole<L: LossyLinks>(links: &L) {
    assert_torn_ones_are_dropped(links, RecvKind::WriteWithImm, |a, n| a.write(1024, Some(n)));
}
