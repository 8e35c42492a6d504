//! All cases, in userspace over loopback.

use std::process::Command;

use roce_conformance::{ALONE, SoftLinks, for_every_link, for_lossy_links, run, run_lossy};

macro_rules! tests {
    ($run:ident $($module:ident { $($name:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $name() {
                let name = concat!(stringify!($module), "::", stringify!($name));
                super::$run(name, &super::SoftLinks::new());
            })*
        })*
    };
}

macro_rules! tests_of_every_link {
    ($($cases:tt)*) => { tests! { run $($cases)* } };
}

macro_rules! tests_of_lossy_links {
    ($($cases:tt)*) => { tests! { run_lossy $($cases)* } };
}

for_every_link!(tests_of_every_link);
for_lossy_links!(tests_of_lossy_links);

/// Fifty set-ups and closes, in which valgrind sees no bad access and no leak.
#[test]
#[ignore = "needs valgrind; `cargo xtask test` runs it"]
fn fifty_cycles_under_valgrind() {
    const CASE: &str = "setups::fifty_cycles_leave_nothing";
    let program = std::env::current_exe().expect("a path");
    let output = Command::new("valgrind")
        .args(["--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"])
        .args(["--errors-for-leak-kinds=definite,indirect"])
        .arg(program)
        .args(["--exact", CASE, "--test-threads=1"])
        .env(ALONE, CASE)
        .output()
        .expect("valgrind is installed");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let clean = said[0].contains("1 passed") && said[1].contains("ERROR SUMMARY: 0 errors");
    assert!(output.status.success() && clean, "{}: {}{}", output.status, said[0], said[1]);
}
