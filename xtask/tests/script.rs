//! `scripts/hsb_test_cpu.sh` passes the known options on to the right command.

use std::process::Command;

/// What the script would have cargo do.
fn runs(options: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/hsb_test_cpu.sh");
    let output = Command::new("bash")
        .arg(script)
        .args(options.split_whitespace())
        .env("CARGO", "echo")
        .output()
        .expect("bash is there");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

#[test]
fn emulated() {
    assert_eq!(runs("--emulate"), "xtask emulate");
    assert_eq!(
        runs("--emulate --setup-network --build --unified --device rxe0 --mtu 9000 --num-messages 7"),
        "xtask emulate --unified --backend rxe0 --num-messages 7"
    );
}

#[test]
fn on_hardware() {
    assert_eq!(
        runs("--build --fpga-ip 192.168.0.2 --device mlx5_0 --mtu 1500 --setup-network"),
        "xtask hw-test --build --fpga-ip 192.168.0.2 --device mlx5_0 --mtu 1500 --setup-network"
    );
}
