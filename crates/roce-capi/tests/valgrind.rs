//! Set-ups and closes of the C library under valgrind: no bad access, no leak, and fifty of them leave no more behind
//! than ten. `cargo test -p roce-capi --test valgrind -- --ignored`.

mod common;

use common::{Installed, crate_dir, run, unused_addr, valgrind};

/// What valgrind calls still reachable, when the program ends.
fn reachable(summary: &str) -> &str {
    let line = summary.lines().find(|line| line.contains("in use at exit:")).expect("valgrind's summary");
    line.split("exit:").nth(1).expect("bytes and blocks").trim()
}

#[test]
#[ignore = "needs valgrind; `cargo xtask test` runs it"]
fn fifty_lives_leave_no_more_than_ten() {
    let installed = Installed::new();
    let program = installed.compile(&crate_dir().join("tests/c/lives.c"));
    let left = |lives: &str| {
        let mut command = valgrind(&installed);
        command.arg(&program).args([lives, &unused_addr().to_string(), &unused_addr().to_string()]);
        run(&mut command)
    };
    let (ten, fifty) = (left("10"), left("50"));
    assert!(fifty.contains("ERROR SUMMARY: 0 errors"), "{fifty}");
    assert_eq!(reachable(&fifty), reachable(&ten), "{ten}\n{fifty}");
}
