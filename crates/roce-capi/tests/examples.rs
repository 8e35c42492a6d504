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

fn serves(service: &str) {
    let installed = Installed::new();
    let program = installed.compile(&example(service));
    let caller = installed.compile(&example("ring_caller.c"));
    let (service_ip, caller_ip) = (unused_addr().to_string(), unused_addr().to_string());
    let mut service = installed
        .command(program)
        .args(["soft", &service_ip, "0", CALLS])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the service starts");
    let mut line = String::new();
    BufReader::new(service.stdout.take().expect("piped")).read_line(&mut line).expect("it writes");
    let port = line.trim_end().rsplit(' ').next().expect("the port");
    let output = installed
        .command(caller)
        .args(["soft", &caller_ip, &service_ip, port, CALLS])
        .output()
        .expect("the caller starts");
    assert!(output.status.success(), "{}", common::text(&output.stderr));
    assert_eq!(stdout(&output), format!("{CALLS} of {CALLS} calls answered well\n"));
    assert!(service.wait().expect("it ends").success());
}

#[test]
fn a_service_over_the_rings() {
    serves("ring_service.c");
}

#[test]
fn a_service_in_unified_mode() {
    serves("unified_service.cpp");
}

#[test]
fn they_say_how_they_are_used() {
    let installed = Installed::new();
    let caller = installed.compile(&example("ring_caller.c"));
    let output = installed.command(caller).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(common::text(&output.stderr).starts_with("usage: "));
}
