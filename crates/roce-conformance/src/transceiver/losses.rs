//! Messages that get lost on the way.

use roce_transport::{ConfigBuilder, Mode, TxMode};

use super::{publish, slot_of, stations, take};
use crate::links::LossyLinks;
use crate::wait::wait_until;

const PAGES: u32 = 16;
const COUNT: u64 = 600;

fn shape(mode: Mode, tx_mode: TxMode) -> impl Fn(ConfigBuilder) -> ConfigBuilder {
    move |config| config.num_pages(PAGES).page_size(128).frame_size(72).mode(mode).tx_mode(tx_mode)
}

/// Sends one message after the other, of which a share is lost. Gives the numbers of those that arrived, each in the
/// slot that `slot` expects: called with its number, and how many arrived before it.
fn lossy_stream<L: LossyLinks>(links: &L, tx_mode: TxMode, slot: fn(u64, u64) -> u32) -> (Vec<u64>, u64) {
    let faults = "drop=0.15,seed=21".parse().expect("faults");
    let lossy = |config: ConfigBuilder| shape(Mode::TxOnly, tx_mode)(config).faults(faults);
    let (a, b) = stations(links, lossy, shape(Mode::RxOnly, tx_mode));
    let (from, to) = (a.take_ends().expect("set up"), b.take_ends().expect("set up"));
    let counter = |name| {
        let wire = a.stats().wire;
        wire.iter().find(|(known, _)| *known == name).expect("a counter").1
    };
    let mut arrived: Vec<u64> = Vec::new();
    for n in 0..COUNT {
        publish(&from, slot_of(n, PAGES), n);
        let mut left = 0;
        wait_until("its fate", || {
            left = counter(links.sent_counter());
            left + counter(links.lost_counter()) == n + 1
        });
        let before = arrived.len() as u64;
        if left > before {
            let at = slot(n, before);
            wait_until("a message", || take(&to, at).is_some_and(|number| number == n));
            arrived.push(n);
        }
    }
    let stats = b.stats();
    assert_eq!((stats.received, stats.overruns), (arrived.len() as u64, 0));
    let seen = u64::from(PAGES);
    assert!(arrived.len() as u64 + seen < COUNT && arrived.len() as u64 > seen, "too few lost, or too many");
    a.close_well();
    b.close_well();
    (arrived, stats.lost)
}

pub(crate) fn lost_messages_are_counted_and_shift_nothing<L: LossyLinks>(links: &L) {
    let (arrived, lost) = lossy_stream(links, TxMode::WriteWithImm, |n, _| slot_of(n, PAGES));
    let span = arrived[arrived.len() - 1] - arrived[0] + 1;
    assert_eq!(lost, span - arrived.len() as u64, "every gap is counted");
}

/// A SEND lands in the receive that is next, whatever got lost before.
pub(crate) fn lost_sends_shift_nothing<L: LossyLinks>(links: &L) {
    lossy_stream(links, TxMode::Send, |_, before| slot_of(before, PAGES));
}
