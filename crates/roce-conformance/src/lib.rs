//! What every link must do: cases for queue pairs ([`roce_core`]'s traits) and for transceivers
//! ([`roce_transport::Transceiver`]), run on each link alike.
//!
//! A link is told by [`Links`]: how to open the two ends of it. [`SoftLinks`] runs everywhere; with the
//! feature `verbs`, `VerbsLinks` is an RDMA device.
//! [`for_every_link!`](crate::for_every_link) and [`for_lossy_links!`](crate::for_lossy_links) hand the names of all
//! cases to a macro of yours, which makes a test of each; `tests/soft.rs` shows how. The names are listed once: a case
//! that is not in the list is dead code, which the lints refuse.
//!
//! Invariants: a case knows no link, only [`Links`]; nothing waits by sleeping, and nothing about speed is asserted;
//! a case that counts what the process holds runs in a process of its own.

#![deny(unsafe_code)]

mod alone;
#[allow(unsafe_code)]
mod foreign;
mod links;
mod memory;
mod queue_pair;
mod rng;
mod soft;
mod transceiver;
#[cfg(feature = "verbs")]
mod verbs;
mod wait;

pub use alone::ALONE;
pub use links::{BadWrite, Links, LossyLinks, OverlongSend, Side};
pub use soft::SoftLinks;
#[cfg(feature = "verbs")]
pub use verbs::VerbsLinks;

/// Calls the macro `$with` with the names of all cases that every link passes, as `module { case case … } …`.
#[macro_export]
macro_rules! for_every_link {
    ($with:ident) => {
        $with! {
            messages {
                sends_of_every_size
                writes_of_every_size
                plain_writes_of_every_size
                sends_from_the_rx_region
                every_immediate
                one_message_at_a_time
                receives_are_consumed_in_order
                a_thousand_messages_in_order
                both_ways_at_once
                queue_pairs_of_one_device_do_not_mix
            }
            refusals {
                without_a_receive_a_message_is_gone
                a_wrong_key_writes_nothing
                out_of_bounds_writes_nothing
                an_overlong_send_spares_its_neighbours
                a_full_send_queue_is_back_pressure
                a_full_receive_queue_says_so
                bytes_outside_the_region_are_refused
                a_refused_connect_gives_the_queue_pair_back
                impossible_queue_pairs_are_refused
            }
            lifetimes {
                dropped_without_connect
                dropped_with_messages_under_way
                the_sending_half_goes_first
                the_receiving_half_goes_first
            }
            modes {
                threads_send
                threads_write
                threads_write_and_send
                forward_sends
                forward_writes
                unified_send
                unified_write
                unified_serves_threads
                unified_stages_sends
                unified_stages_writes
                threads_serve_unified
                one_way_send
                one_way_write
                rx_only_sends_nothing
                calls_out_of_order_are_refused
            }
            rings {
                a_small_ring_wraps_many_times
                a_ring_of_one_page
                a_ring_beyond_the_short_immediate
                frames_of_several_packets
                frames_shorter_than_pages
                slots_come_in_order
                publication_out_of_order
                unified_publishes_any_slot
                unified_publishes_part_of_a_slot
                markers_are_never_sent
                a_held_request_waits_for_its_tx_flag
                a_cleared_flag_frees_the_slot
                a_published_unified_slot_is_free
            }
            frames {
                frames_of_many_writes
                frames_of_many_writes_in_every_mode
            }
            overruns {
                drop_goes_on_with_the_newest
                wait_stops_until_the_slot_is_free
                fail_ends_the_monitor
                a_reader_learns_that_its_slot_was_overwritten
            }
            pollers {
                one_thread_serves_many
                members_come_and_go
            }
            endings {
                close_at_random_moments_of_threads
                close_at_random_moments_of_forward
                close_at_random_moments_of_unified
                close_from_many_threads
                the_peer_goes_and_a_new_one_comes
                sixteen_at_once
            }
            setups {
                a_failed_setup_leaves_nothing
                a_refused_connect_can_be_tried_again
                fifty_cycles_leave_nothing
            }
        }
    };
}

/// Calls the macro `$with` with the names of all cases of links that lose packets on demand, as
/// [`for_every_link!`](crate::for_every_link).
#[macro_export]
macro_rules! for_lossy_links {
    ($with:ident) => {
        $with! {
            torn {
                a_torn_send_is_dropped_whole
                a_torn_write_is_dropped_whole
            }
            losses {
                lost_messages_are_counted_and_shift_nothing
                lost_sends_shift_nothing
            }
        }
    };
}

/// A case for links of type `L`.
#[derive(Debug)]
struct Case<L> {
    name: &'static str,
    run: fn(&L),
}

macro_rules! table {
    ($($module:ident { $($name:ident)* })*) => {
        [$($(Case {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: $module::$name,
        },)*)*]
    };
}

/// Runs the case of that name; panics when it fails, or when [`for_every_link!`](crate::for_every_link) has no such name.
pub fn run<L: Links>(name: &str, links: &L) {
    use queue_pair::{lifetimes, messages, refusals};
    use transceiver::{endings, frames, modes, overruns, pollers, rings, setups};
    find(&for_every_link!(table), name)(links);
}

/// As [`run`], of the cases of [`for_lossy_links!`](crate::for_lossy_links).
pub fn run_lossy<L: LossyLinks>(name: &str, links: &L) {
    use queue_pair::torn;
    use transceiver::losses;
    find(&for_lossy_links!(table), name)(links);
}

fn find<L>(cases: &[Case<L>], name: &str) -> fn(&L) {
    let case = cases.iter().find(|case| case.name == name);
    case.unwrap_or_else(|| panic!("there is no case {name}")).run
}
