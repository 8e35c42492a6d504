//! `net-setup`, `net-teardown`, and what `hw-test` and `emulate` do to the network, on a machine that may be changed: as root, with
//! rdma_rxe and no device yet. Each leaves the network as it was. `cargo xtask vm-test` runs these.

#![allow(clippy::unwrap_used)] // clippy spares test functions alone, not their helpers

#[allow(dead_code)] // each test file uses what it needs
mod device;

use std::fs;

use device::{fail, network, plays, said, succeed, wait_until};

const ALL_RP_FILTER: &str = "/proc/sys/net/ipv4/conf/all/rp_filter";
const INCREMENT: [&str; 2] = ["--workload", "increment"];

/// Calls `test` between two looks at the network, which must show the same.
#[track_caller]
fn leaves_no_trace(test: impl FnOnce()) {
    assert!(
        std::env::var_os("ROCE_TEST_NET").is_some_and(|yes| yes == "1"),
        "these change the network; ROCE_TEST_NET=1 says that they may. `cargo xtask vm-test` runs them"
    );
    // A value that a setup has to change.
    fs::write(ALL_RP_FILTER, "2").unwrap();
    let before = network();
    test();
    assert_eq!(network(), before);
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn a_pair_is_made_once_and_goes_completely() {
    leaves_no_trace(|| {
        let made = succeed(&["net-setup", "--veth"]);
        assert!(made.contains("+ rdma link add rxe_a type rxe netdev roce_a"), "{made}");
        assert!(made.contains("::ffff:198.18.77.2 (roce_b)"), "{made}");
        let between = network();
        let again = succeed(&["net-setup", "--veth"]);
        assert!(!again.contains("\n+ ") && !again.starts_with("+ "), "{again}");
        assert_eq!(network(), between);
        assert_eq!(fs::read_to_string(ALL_RP_FILTER).unwrap().trim(), "0");
        plays(&[&["emulate", "--backend", "rxe"], &INCREMENT[..]].concat(), 100);
        succeed(&["net-teardown"]);
        let twice = succeed(&["net-teardown"]);
        assert!(twice.starts_with("Nothing to take back"), "{twice}");
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn a_device_on_an_interface_that_is_there() {
    leaves_no_trace(|| {
        let args = ["net-setup", "--rxe", "lo", "--address", "127.0.0.2/8", "--mtu", "4200"];
        let made = succeed(&args);
        assert!(made.contains("::ffff:127.0.0.1 (lo)") && made.contains("::ffff:127.0.0.2 (lo)"), "{made}");
        let between = network();
        succeed(&args);
        assert_eq!(network(), between);
        // The kernel looks for addresses of lo only when a device is made.
        let third = succeed(&["net-setup", "--rxe", "lo", "--address", "127.0.0.3/8"]);
        assert!(third.contains("::ffff:127.0.0.3 (lo)"), "{third}");
        // The first MTU is the one to come back to.
        succeed(&["net-setup", "--rxe", "lo", "--mtu", "9000"]);
        succeed(&["net-teardown"]);
        succeed(&["net-teardown"]);
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn what_is_not_ours_is_not_touched() {
    leaves_no_trace(|| {
        let said_of_none = fail(&["net-setup", "--rxe", "no-such-interface"]);
        assert!(
            said_of_none.contains("there is no interface no-such-interface; there are: lo"),
            "{said_of_none}"
        );
        said("ip", &["link", "add", "roce_a", "type", "veth", "peer", "name", "roce_b"]);
        let before = network();
        let refused = fail(&["net-setup", "--veth"]);
        assert!(refused.contains("net-setup did not make it"), "{refused}");
        assert_eq!(network(), before);
        succeed(&["net-teardown"]);
        assert_eq!(network(), before);
        said("ip", &["link", "delete", "roce_a"]);
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn a_device_of_somebody_else_is_used_and_stays() {
    leaves_no_trace(|| {
        said("rdma", &["link", "add", "theirs", "type", "rxe", "netdev", "lo"]);
        let before = network();
        let found = succeed(&["net-setup", "--rxe", "lo"]);
        assert!(found.contains("theirs is on lo already"), "{found}");
        let late = fail(&["net-setup", "--rxe", "lo", "--address", "127.0.0.2/8"]);
        assert!(late.contains("`rdma link delete theirs`"), "{late}");
        succeed(&["net-teardown"]);
        assert_eq!(network(), before);
        said("rdma", &["link", "delete", "theirs"]);
    });
}

/// Whichever build of xtask takes back: the notes are the machine's and not the build directory's.
#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn a_neighbour_of_somebody_else_comes_back() {
    leaves_no_trace(|| {
        let neighbour = |words: &str| {
            let args = ["neighbour", "replace", "10.9.0.2", "dev", "p0", "nud", "permanent", "lladdr", words];
            said("ip", &args)
        };
        said("ip", &["link", "add", "p0", "type", "veth", "peer", "name", "p1"]);
        said("ip", &["address", "add", "10.9.0.1/24", "dev", "p0"]);
        for interface in ["p0", "p1"] {
            said("ip", &["link", "set", interface, "up"]);
        }
        neighbour("02:00:00:00:00:01");
        let before = network();
        for mac in ["02:00:00:00:00:02", "02:00:00:00:00:03"] {
            succeed(&["net-setup", "--rxe", "p0", "--neighbour", &format!("10.9.0.2={mac}")]);
            assert!(said("ip", &["neighbour"]).contains(mac));
        }
        let elsewhere = std::env::temp_dir().join("xtask-of-another-build");
        fs::copy(env!("CARGO_BIN_EXE_xtask"), &elsewhere).unwrap();
        println!("{}", said(elsewhere.to_str().unwrap(), &["net-teardown"]));
        assert_eq!(network(), before);
        said("ip", &["link", "delete", "p0"]);
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn a_setup_that_fails_half_way_takes_itself_back() {
    leaves_no_trace(|| {
        said("ip", &["link", "add", "other", "type", "veth", "peer", "name", "end"]);
        said("ip", &["address", "add", "198.18.77.2/24", "dev", "other"]);
        let before = network();
        let refused = fail(&["net-setup", "--veth"]);
        assert!(refused.contains("198.18.77.2 is another interface's address"), "{refused}");
        assert_eq!(network(), before);
        said("ip", &["link", "delete", "other"]);
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn auto_takes_soft_roce_where_it_can_be_made() {
    leaves_no_trace(|| plays(&[&["emulate", "--backend", "auto"], &INCREMENT[..]].concat(), 100));
}

/// The loop-back of one port: too few addresses, two, and one too many.
#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn hw_test_names_what_is_wrong_with_the_addresses() {
    leaves_no_trace(|| {
        succeed(&["net-setup", "--veth"]);
        let on = ["hw-test", "--device", "rxe_a"];
        let few = fail(&on);
        assert!(few.contains("both ends share this port, so it needs two"), "{few}");
        assert!(few.contains("RESULT: FAIL (preconditions not met: 1)"), "{few}");

        let addresses = ["--bridge-ip", "198.18.77.1", "--emulator-ip", "198.18.77.5", "--setup-network"];
        let before = network();
        plays(&[&on, &addresses[..], &INCREMENT, &["--unified"]].concat(), 100);
        assert_eq!(network(), before);

        for ip in ["198.18.77.6/24", "198.18.77.7/24"] {
            said("ip", &["address", "add", ip, "dev", "roce_a"]);
        }
        let table = || {
            let dir = "/sys/class/infiniband/rxe_a/ports/1/gids";
            let gids = fs::read_dir(dir).unwrap().filter_map(|gid| fs::read_to_string(gid.ok()?.path()).ok());
            gids.filter(|gid| gid.contains("ffff:c612:4d")).count()
        };
        wait_until("three addresses have GIDs", || table() == 3);
        let many = fail(&on);
        assert!(many.contains("198.18.77.7 may be taken for one of them"), "{many}");
        succeed(&["net-teardown"]);
    });
}

#[test]
#[ignore = "changes the network: ROCE_TEST_NET=1 allows it"]
fn hw_test_between_two_ports_that_have_nothing_yet() {
    leaves_no_trace(|| {
        said(
            "ip",
            &["link", "add", "p0", "mtu", "4200", "type", "veth", "peer", "name", "p1", "mtu", "4200"],
        );
        for (device, interface) in [("card0", "p0"), ("card1", "p1")] {
            said("rdma", &["link", "add", device, "type", "rxe", "netdev", interface]);
        }
        // An interface's first rise gives it a queue, which nothing takes away again.
        for change in ["up", "down"] {
            for interface in ["p0", "p1"] {
                said("ip", &["link", "set", interface, change]);
            }
        }
        let before = network();
        let on = ["hw-test", "--device", "card0", "--peer-device", "card1"];
        let bare = fail(&on);
        assert!(bare.contains("ip link set p0 up") && bare.contains("ip address add IP/24 dev p1"), "{bare}");
        let addresses =
            ["--bridge-ip", "10.9.0.1", "--emulator-ip", "10.9.0.2", "--setup-network", "--mtu", "9000"];
        plays(&[&on, &addresses[..], &INCREMENT].concat(), 100);
        assert_eq!(network(), before);
        said("rdma", &["link", "delete", "card0"]);
        said("rdma", &["link", "delete", "card1"]);
        said("ip", &["link", "delete", "p0"]);
    });
}
