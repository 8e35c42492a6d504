//! Builds, tests and runs this workspace: `cargo xtask COMMAND`.
//!
//! Invariant: no dependency on a sibling crate, so that this builds in seconds on a bare machine and can say
//! what the rest needs.

#![deny(unsafe_code)]

mod bench;
mod build;
mod cargo;
mod emulate;
mod fuzz;
mod header;
mod hw;
mod install;
mod interrupt;
mod memcheck;
mod net;
mod outside;
#[allow(unsafe_code)]
mod process;
mod rdma;
mod setup;
mod table;
mod test;
mod tidy;
mod vm;

use std::ffi::OsString;
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTIONS]

  setup [--check]     installs what building and testing need; --check only says what is missing
  build [--release]   builds the programs
  install [OPTIONS]   installs the C libraries, headers and programs (--help: options)
  bench [OPTIONS]     measures the transport beside its raw limits, and compares results (--help: options)
  emulate [OPTIONS]   runs FPGA, decoder and playback on this machine and checks every answer (--help: options)
  test [--quick]      setup, then everything that can be tested here; --quick leaves out what takes minutes
  vm [--] COMMAND     runs a command in a virtual machine that has soft-RoCE (--help: options)
  vm-test             runs the tests that need an RDMA device there
  test-device         runs them on the RDMA device that ROCE_TEST_DEVICE names
  hw-test             checks RDMA devices and runs bridge and FPGA over them (--help: options)
  net-setup           makes soft-RoCE devices of this machine's kernel (--help: options)
  net-teardown        takes back exactly what net-setup did
  outside             builds and runs projects that use single crates, as strangers would
  fuzz [TARGET ...]   looks for bytes that break what reads the wire (--help: options)
  header --check      checks the C headers against the library
  memcheck [--quick]  runs C programs under valgrind and with AddressSanitizer
  tidy                checks the rules that neither compiler nor clippy knows
";

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    let result = match command.to_str() {
        Some("setup") => setup::run(rest),
        Some("bench") => bench::run(rest),
        Some("build") => build::run(rest),
        Some("install") => install::run(rest),
        Some("emulate") => emulate::run(rest),
        Some("test") => test::run(rest),
        Some("vm") => vm::run(rest),
        Some("vm-test") => vm::test(rest),
        Some("hw-test") => hw::run(rest),
        Some("net-setup") => net::setup(rest),
        Some("net-teardown") => net::teardown(rest),
        Some("test-device") => vm::test_device(rest),
        Some("outside") => outside::run(rest),
        Some("fuzz") => fuzz::run(rest),
        Some("header") => header::run(rest),
        Some("memcheck") => memcheck::run(rest),
        Some("tidy") => tidy::run(rest),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(usage_error("say what to do", USAGE)),
    };
    result.unwrap_or_else(|error| match error.downcast_ref::<UsageError>() {
        Some(usage) => {
            eprintln!("error: {}\n\n{}", usage.problem, usage.usage);
            ExitCode::from(2)
        }
        None => {
            eprintln!("error: {error:#}");
            interrupt::exit_code().unwrap_or(ExitCode::FAILURE)
        }
    })
}

/// The caller asked for something that cannot be: exit code 2 and the usage.
#[derive(Debug)]
struct UsageError {
    problem: String,
    usage: &'static str,
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for UsageError {}

fn usage_error(problem: impl std::fmt::Display, usage: &'static str) -> anyhow::Error {
    UsageError { problem: problem.to_string(), usage }.into()
}

/// For commands with at most one flag: was it given?
fn only_flag(args: Vec<OsString>, flag: Option<&str>) -> anyhow::Result<bool> {
    let mut given = false;
    for arg in args {
        if flag.is_some_and(|flag| arg == flag) {
            given = true;
        } else {
            return Err(usage_error(format!("no such option: {}", arg.to_string_lossy()), USAGE));
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_flag_is_taken() {
        assert!(only_flag(vec!["--check".into()], Some("--check")).unwrap());
        assert!(!only_flag(Vec::new(), Some("--check")).unwrap());
        let error = only_flag(vec!["--chekc".into()], Some("--check")).unwrap_err();
        assert!(error.downcast_ref::<UsageError>().is_some_and(|e| e.problem.contains("--chekc")));
        assert!(only_flag(vec!["--check".into()], None).is_err());
    }
}
