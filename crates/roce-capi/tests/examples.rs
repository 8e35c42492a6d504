//! The examples for users, built and run against each other.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use common::{Installed, crate_dir, stdout, unused_addr};

const CALLS: &str = "200";

fn example(name: &str) -> PathBuf {
    crate_dir().join("../../examples").join(name)
}

fn serves(service: &str, callers: u8, more: &[&str]) {
    let installed = Installed::new();
    let program = installed.compile(&example(service));
    let caller = installed.compile(&example("ring_caller.c"));
    let service_ip = unused_addr().to_string();
    let mut service = installed
        .command(program)
        .args(["soft", &service_ip, "0", CALLS])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the service starts");
    let mut lines = BufReader::new(service.stdout.take().expect("piped")).lines();
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let line = lines.next().expect("it waits for the next one").expect("it writes");
            let port = line.rsplit(' ').next().expect("the port");
            installed
                .command(&caller)
                .args(["soft", &unused_addr().to_string(), &service_ip, port, CALLS])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the caller starts")
        })
        .collect();
    for caller in callers {
        let output = caller.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", common::text(&output.stderr));
        assert_eq!(stdout(&output), format!("{CALLS} of {CALLS} calls answered well\n"));
    }
    assert!(service.wait().expect("it ends").success());
}

#[test]
fn a_service_over_the_rings() {
    serves("ring_service.c", 1, &[]);
}

#[test]
fn a_service_in_unified_mode() {
    serves("unified_service.cpp", 1, &[]);
}

#[test]
fn a_service_for_many_callers_on_one_thread() {
    serves("shared_service.c", 3, &["3"]);
}

#[test]
fn they_say_how_they_are_used() {
    let installed = Installed::new();
    let caller = installed.compile(&example("ring_caller.c"));
    let output = installed.command(caller).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(common::text(&output.stderr).starts_with("usage: "));
}
