//! What the benchmark of instructions makes of callgrind's profiles, and when a count fails.

#[path = "../benches/instructions/counts.rs"]
mod counts;
#[path = "../benches/instructions/profile.rs"]
mod profile;

use counts::{Complaint, Counts, Row, Toolchain};
use profile::Profile;

/// A round trip that calls a step and a stub; the step calls the library, and that the stub.
const PROFILE: &str = "\
version: 1
events: Ir
fl=/home/bench/cases.rs
fn=instructions::cases::unified
10 100
calls=5 20
11 900
fn=instructions::steps::poll
20 70
cfn=roce_transport::rx::RxPath<R,G>::next
calls=5 30
21 300
22 7
fn=<instructions::stub::StubRecv as roce_core::qp::UcRecv>::poll
40 1000

fn=<roce_transport::unified::Unified<instructions::stub::StubQp> as Link>::rx_poll
30 200
fe=/home/core.rs
31 13
";

#[test]
fn a_profile_counts_the_library_and_its_steps_alone() {
    let profile = Profile::parse(PROFILE);
    assert_eq!(profile.total(), 70.0 + 7.0 + 200.0 + 13.0);
    let functions = profile.beside(None).to_string();
    let lines: Vec<_> = functions.lines().map(str::trim).collect();
    assert_eq!(lines.len(), 2, "{functions}");
    assert!(lines[0].starts_with("213.0  <roce_transport::"), "{functions}");
    assert_eq!(lines[1], "77.0  instructions::steps::poll");
}

#[test]
fn what_does_not_grow_with_the_messages_is_taken_off() {
    let few = Profile::parse("fn=roce_ring::publish\n1 1010\nfn=main\n2 500\n");
    let many = Profile::parse("fn=roce_ring::publish\n1 2010\nfn=main\n2 500\n");
    let each = many.per_message(&few, 100.0);
    assert_eq!(each.total(), 10.0);
    let other = Profile::parse("fn=roce_ring::publish\n1 4\n");
    assert_eq!(each.beside(Some(&other)).to_string().trim(), "10.0        4.0  roce_ring::publish");
}

fn toolchain(rustc: &str, arch: &str) -> Toolchain {
    Toolchain { rustc: rustc.to_owned(), valgrind: "valgrind-3".to_owned(), arch: arch.to_owned() }
}

fn kept() -> Counts {
    Counts::parse(
        r#"{"rustc": "1.88", "valgrind": "valgrind-3", "arch": "x", "counts": {"poll": 100, "old": 5}}"#,
    )
}

fn complaint(count: f64, budget: Option<f64>) -> Option<Complaint> {
    Row::new("poll", count, budget).beside(&kept()).complaint()
}

#[test]
fn a_change_beyond_five_percent_fails_either_way() {
    for count in [95.1, 100.0, 104.9] {
        assert_eq!(complaint(count, Some(300.0)), None);
    }
    let worse = complaint(106.0, None).expect("6 % more");
    assert_eq!(worse.to_string(), "poll: 106.0 instructions, 100 before (+6.0 %)");
    let better = complaint(94.0, None).expect("6 % less");
    assert_eq!(better.to_string(), "poll: 94.0 instructions, 100 before (-6.0 %)");
    assert!(worse.can_be_accepted() && better.can_be_accepted());
}

#[test]
fn a_count_above_its_budget_fails_whatever_was_kept() {
    let above = complaint(100.0, Some(99.0)).expect("above the budget");
    assert_eq!(above.to_string(), "poll: 100.0 instructions, above the budget of 99");
    assert!(!above.can_be_accepted());
}

#[test]
fn a_case_that_nothing_was_kept_of_fails() {
    let new = Row::new("new", 3.0, None).beside(&kept()).complaint().expect("nothing to compare with");
    assert!(new.to_string().contains("none are kept") && new.can_be_accepted());
}

#[test]
fn what_is_accepted_replaces_what_was_kept() {
    let here = toolchain("1.95", "x");
    let rows = [Row::new("poll", 110.04, None)];
    let some = Counts::parse(&kept().with(&rows, false, &here).text());
    assert_eq!(some.toolchain, toolchain("1.88", "x"));
    assert_eq!(Row::new("old", 5.0, None).beside(&some).complaint(), None);
    assert_eq!(
        Row::new("poll", 110.0, None).beside(&some).to_string().split_whitespace().last(),
        Some("110.0")
    );
    let all = Counts::parse(&kept().with(&rows, true, &here).text());
    assert_eq!(all.toolchain, here);
    assert!(Row::new("old", 5.0, None).beside(&all).complaint().is_some());
}

#[test]
fn toolchains_that_count_otherwise_are_told_apart() {
    assert!(toolchain("1.95", "x").counts_as(&toolchain("1.88", "x")));
    assert!(!toolchain("1.88", "arm").counts_as(&toolchain("1.88", "x")));
    assert_eq!(toolchain("rustc 1.95", "x").to_string(), "rustc 1.95, valgrind-3, x");
}
