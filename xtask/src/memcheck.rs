//! `cargo xtask memcheck`: the C libraries, and programs on them, under valgrind and with AddressSanitizer.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::process::how;
use crate::{cargo, interrupt, only_flag, setup, table, test};

/// A test, for which valgrind is started by itself.
struct UnderValgrind {
    name: &'static str,
    package: &'static str,
    test: &'static str,
    /// Left out by `--quick`.
    slow: bool,
}

const UNDER_VALGRIND: [UnderValgrind; 4] = [
    UnderValgrind {
        name: "fifty set-ups and closes in Rust",
        package: "roce-conformance",
        test: "soft",
        slow: false,
    },
    UnderValgrind {
        name: "fifty set-ups and closes in C",
        package: "roce-capi",
        test: "valgrind",
        slow: false,
    },
    UnderValgrind { name: "the C programs", package: "roce-capi", test: "programs", slow: true },
    UnderValgrind {
        name: "a C program with the provider",
        package: "roce-provider",
        test: "host",
        slow: true,
    },
];

/// Tests that build C programs with the flags of `ROCE_TEST_CFLAGS`, and run them on the library.
const WITH_SANITIZER: [(&str, &[&str]); 2] =
    [("roce-capi", &["programs", "examples"]), ("roce-provider", &["host"])];

pub(crate) fn run(args: Vec<OsString>) -> Result<ExitCode> {
    let quick = only_flag(args, Some("--quick"))?;
    interrupt::install()?;
    ensure!(setup::on_path("valgrind"), "valgrind is missing; `cargo xtask setup` installs it");
    let mut rows = Rows::default();
    for step in UNDER_VALGRIND.iter().filter(|step| !(quick && step.slow)) {
        let mut test = cargo::command(["test", "--package", step.package, "--test", step.test]);
        rows.run(&format!("valgrind: {}", step.name), test.args(["--", "--ignored"]))?;
    }
    if !quick {
        with_sanitizer(&mut rows)?;
    }
    println!("\n{}", table::render(&["step", "state", "seconds", "note"], &rows.rows));
    Ok(if rows.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn with_sanitizer(rows: &mut Rows) -> Result<()> {
    let name = |package: &str| format!("AddressSanitizer: C programs on {package}");
    if !has_nightly() {
        for (package, _) in WITH_SANITIZER {
            rows.add(
                &name(package),
                "skipped",
                "",
                "no nightly toolchain; `rustup toolchain install nightly`",
            );
        }
        return Ok(());
    }
    let host = host()?;
    let dir = cargo::target_dir()?.join("asan");
    for (package, tests) in WITH_SANITIZER {
        let mut command = Command::new("cargo");
        // With a target named, build scripts and macros are spared.
        command.args(["+nightly", "test", "--package", package, "--target", &host]);
        command.args(tests.iter().flat_map(|test| ["--test", *test]));
        command
            .current_dir(cargo::root())
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("ROCE_TEST_CFLAGS", "-fsanitize=address -fno-omit-frame-pointer")
            .env("CARGO_TARGET_DIR", &dir);
        rows.run(&name(package), &mut command)?;
    }
    Ok(())
}

fn has_nightly() -> bool {
    let mut version = Command::new("cargo");
    version.args(["+nightly", "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

/// What the compiler calls this machine.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot run rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

/// The closing table.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Vec<String>>,
    failed: bool,
}

impl Rows {
    fn run(&mut self, name: &str, command: &mut Command) -> Result<()> {
        println!("\n=== {name} ===");
        let started = Instant::now();
        let (status, ran) = test::run_counting(command)?;
        let seconds = format!("{:.1}", started.elapsed().as_secs_f64());
        let problem = match ran.passed {
            _ if !status.success() => how(status),
            0 => "ran no test".to_owned(),
            _ => String::new(),
        };
        self.failed |= !problem.is_empty();
        self.add(name, if problem.is_empty() { "passed" } else { "FAILED" }, &seconds, &problem);
        Ok(())
    }

    fn add(&mut self, name: &str, state: &str, seconds: &str, note: &str) {
        self.rows.push([name, state, seconds, note].map(str::to_owned).to_vec());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_kept_and_does_not_hide_what_follows() {
        let mut rows = Rows::default();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let good = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        rows.run("good", &mut shell(good)).unwrap();
        assert!(!rows.failed);
        rows.run("bad", &mut shell("exit 101")).unwrap();
        rows.run("empty", &mut shell(&good.replace('2', "0"))).unwrap();
        rows.run("good again", &mut shell(good)).unwrap();
        assert!(rows.failed);
        let states: Vec<&str> = rows.rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(states, ["passed", "FAILED", "FAILED", "passed"]);
        assert_eq!((&*rows.rows[1][3], &*rows.rows[2][3]), ("exit code 101", "ran no test"));
    }

    #[test]
    fn the_host_has_a_name() {
        assert!(host().unwrap().contains("-linux-"));
    }
}
