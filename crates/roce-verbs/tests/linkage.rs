//! Programs with this crate in them start without libibverbs, and load it when a device is first asked for.

use std::fs;
use std::process::Command;

use roce_verbs::{VerbsConfig, VerbsDevice, VerbsError, device_names};

/// Of this very program, which holds all of the crate.
fn tool(name: &str, option: &str) -> String {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(name).arg(option).arg(program).output().expect("binutils");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn is_loaded() -> bool {
    fs::read_to_string("/proc/self/maps").expect("the maps of this process").contains("libibverbs.so")
}

#[test]
fn needs_no_libibverbs_to_start() {
    let needed: String = tool("readelf", "-d").lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(needed.contains("libc.so"), "{needed}");
    assert!(!needed.contains("libibverbs") && !needed.contains("librdmacm"), "{needed}");
    let symbols = tool("nm", "-D");
    let verbs: Vec<_> =
        symbols.lines().filter(|line| line.contains("ibv_") || line.contains("rdma_")).collect();
    assert!(verbs.is_empty(), "{verbs:?}");
}

#[test]
fn loads_it_when_first_asked() {
    assert!(!is_loaded(), "before");
    let opened = VerbsDevice::open(VerbsConfig::new("no-such-device"));
    let text = opened.as_ref().err().map(ToString::to_string).expect("no such device");
    match opened {
        Err(VerbsError::Library { .. }) => assert!(text.contains("install"), "{text}"),
        Err(VerbsError::NoSuchDevice { known, .. }) => {
            assert!(is_loaded(), "after");
            assert_eq!(known, device_names().expect("listed a moment ago"));
            assert!(text.contains("no-such-device"), "{text}");
            assert!(known.iter().all(|name| text.contains(name)), "{text}");
        }
        other => panic!("{other:?}"),
    }
}
