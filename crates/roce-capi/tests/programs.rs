//! C programs against the shared library: every call in every state, messages in all modes, many threads.
//!
//! `cargo test -p roce-capi --test programs -- --ignored` runs all of them once more under valgrind, and
//! `cargo xtask memcheck` with AddressSanitizer too.

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use common::{Installed, crate_dir, run, unused_addr, valgrind};

static INSTALLED: LazyLock<Installed> = LazyLock::new(Installed::new);

/// A program of `tests/c`, built once.
fn program(name: &str) -> PathBuf {
    INSTALLED.compile(&crate_dir().join("tests/c").join(name))
}

static REFUSALS: LazyLock<PathBuf> = LazyLock::new(|| program("refusals.c"));
static MESSAGES: LazyLock<PathBuf> = LazyLock::new(|| program("messages.c"));
static POLLERS: LazyLock<PathBuf> = LazyLock::new(|| program("pollers.c"));
static THREADS: LazyLock<PathBuf> = LazyLock::new(|| program("threads.c"));

fn case_of(command: &mut Command, case: &str) -> String {
    run(command.arg(case).arg(unused_addr().to_string()).arg(unused_addr().to_string()))
}

macro_rules! cases {
    ($($program:ident: $($case:ident),* $(,)?;)*) => {
        $($(
            #[test]
            fn $case() {
                case_of(&mut INSTALLED.command(&*$program), stringify!($case));
            }
        )*)*

        #[test]
        #[ignore = "needs valgrind and a minute; `cargo xtask memcheck` runs it"]
        fn all_under_valgrind() {
            $($(
                case_of(valgrind(&INSTALLED).arg(&*$program), stringify!($case));
            )*)*
        }
    };
}

cases! {
    REFUSALS: creation, bad_handles, states, addresses, failed_setup, closed_before_anything, extensions, many_handles;
    MESSAGES: echo_write_send, echo_send_send, echo_write_write, modes, later_slot_first, markers, lapped,
        lapped_by_default, lapped_while_reading, lapped_and_failed, losses, losses_in_rings, unified_send,
        unified_write, callback, callback_after_polls, destroyed_in_callback;
    POLLERS: one_thread_for_many, what_a_poller_refuses, pollers_and_closes_at_once;
    THREADS: close_ends_the_monitor, many_monitors, destroy_alone, poll_through_a_life, poll_here_publish_there, everything_at_once;
}

#[test]
fn a_refusal_is_told_on_standard_error_and_a_repeated_one_once() {
    let told = case_of(&mut INSTALLED.command(&*THREADS), "poll_through_a_life");
    let polls = |why: &str| told.matches(&format!("cpu_roce_rx_poll: {why}")).count();
    // Ten lives, each of which may be caught in each state once.
    assert!((1..=10).contains(&polls("the transceiver is not set up")), "{told}");
    assert!((1..=10).contains(&polls("the transceiver is closed")), "{told}");
    assert!(told.contains("was destroyed before"), "{told}");
    assert!(told.lines().all(|line| line.starts_with("cpu_roce")), "{told}");
}
