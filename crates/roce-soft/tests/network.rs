//! What the network around a queue pair does to it: forged ICMP errors, and routes that come late.
//!
//! Most tests have a network namespace of their own, for which they need CAP_SYS_ADMIN; without that they say so
//! and pass.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;

use common::{Capture, DEPTH, End, connect, fresh_addr, open, pair, pattern, qp_on, qp_with, wait_for};
use roce_core::{Mtu, PeerEndpoint, PostError, Qpn, UcSend, Verb, WireStats};
use roce_soft::wire::{Packet, icrc};
use roce_soft::{DropReason, SoftConfig, SoftDevice};
use socket2::{Domain, Protocol, Socket, Type};

/// Runs `test` where there is nothing but a loopback interface.
fn in_a_network_of_its_own(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: it changes the namespace of this thread, which ends with the test, and no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
                configure("lo", &[(libc::SIOCSIFFLAGS, flags_up())]);
                return test();
            }
            match io::Error::last_os_error() {
                e if e.kind() == ErrorKind::PermissionDenied => {
                    eprintln!("SKIPPED: a network namespace needs CAP_SYS_ADMIN: {e}");
                }
                e => panic!("unshare(CLONE_NEWNET): {e}"),
            }
        });
    });
}

/// Gives the loopback interface a further address, its `n`th.
fn add_address(n: u32, addr: Ipv4Addr) {
    configure(&format!("lo:{n}"), &[(libc::SIOCSIFADDR, ipv4(addr)), (libc::SIOCSIFFLAGS, flags_up())]);
}

type Setting = libc::__c_anonymous_ifr_ifru;

fn flags_up() -> Setting {
    Setting { ifru_flags: i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap() }
}

fn ipv4(addr: Ipv4Addr) -> Setting {
    let [a, b, c, d] = addr.octets().map(u8::cast_signed);
    let family = libc::sa_family_t::try_from(libc::AF_INET).unwrap();
    let sa_data = [0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0];
    Setting { ifru_addr: libc::sockaddr { sa_family: family, sa_data } }
}

fn configure(interface: &str, settings: &[(libc::c_ulong, Setting)]) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    for &(request, value) in settings {
        let mut request_data = libc::ifreq { ifr_name: name, ifr_ifru: value };
        // SAFETY: both requests read an ifreq, which lives until the call returns.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut request_data) };
        assert_eq!(result, 0, "ioctl({request:#x}) on {interface}: {}", io::Error::last_os_error());
    }
}

/// The Internet checksum.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    (!u16::try_from(folded & 0xFFFF).unwrap()).to_be_bytes()
}

/// "Fragmentation needed, next MTU 576", about a packet from `src` to `dst`.
fn fragmentation_needed(src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0, 0x02, 0x40];
    message.extend([0x45, 0, 0x10, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend([src.octets(), dst.octets()].concat());
    message.extend([0x12, 0xB7, 0x12, 0xB7, 0x0F, 0xEC, 0, 0]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    message
}

/// A socket that believes in ICMP, as those of other programs do.
fn believer(addr: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((addr, 0)).unwrap();
    let discover: libc::c_int = libc::IP_PMTUDISC_DO;
    // SAFETY: the value lives until the call returns, and the length is its own.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const discover).cast(),
            libc::socklen_t::try_from(size_of_val(&discover)).unwrap(),
        )
    };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    socket
}

#[test]
fn a_forged_icmp_message_does_not_lower_the_mtu() {
    in_a_network_of_its_own(|| {
        let (mut a, mut b) = pair(Some(Mtu::B4096));
        let (src, dst) = (a.local.ip, b.local.ip);
        let forger = Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::ICMPV4)).unwrap();
        forger.bind(&SocketAddrV4::new(fresh_addr(), 0).into()).unwrap();
        let forged = fragmentation_needed(src, dst);
        let believer = believer(src);
        wait_for("the kernel to believe it", || {
            forger.send_to(&forged, &SocketAddrV4::new(src, 0).into()).unwrap();
            let refused = believer.send_to(&[0; 1000], (dst, 4791)).err()?;
            (refused.raw_os_error() == Some(libc::EMSGSIZE)).then_some(())
        });

        a.tx.set(0, &pattern(1, 9000));
        b.post(1, 0, 9000);
        a.stage(0, 9000, Verb::Send { imm: None });
        a.flush();
        assert_eq!(b.next().id, 1);
        assert_eq!(b.rx.get(0, 9000), pattern(1, 9000));
    });
}

/// Sends to an address that has no route at first. It must be another one in each test: a process has one socket
/// for an address, whatever the namespace.
fn packets_without_a_route_are_lost_and_later_ones_arrive(far: [u8; 4], faults: Option<&str>) {
    in_a_network_of_its_own(move || {
        let far = Ipv4Addr::from(far);
        let peer = PeerEndpoint { qpn: Qpn::new(0x77).unwrap(), rkey: None, ip: far };
        let faults = faults.map(|f| f.parse().unwrap());
        let near = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
        let mut a = qp_on(&SoftDevice::open(near).unwrap(), Some(Mtu::B256)).connect(&peer);
        assert!(a.stats.last_send_error().is_none());
        // One by one, and more at once than go into one system call.
        for messages in [1, 1, 40] {
            for _ in 0..messages {
                a.stage(0, 300, Verb::Send { imm: None });
            }
            a.flush();
        }
        assert_eq!(a.stats.discarded_packets(), 84);
        assert_eq!(a.stats.last_send_error().unwrap().raw_os_error(), Some(libc::ENETUNREACH));
        let counts: HashMap<_, _> = a.stats.snapshot().into_iter().collect();
        assert_eq!((counts["tx_discard_unreachable"], counts["tx_packets"]), (84, 0));

        add_address(1, far);
        let config = SoftConfig { addr: far, first_qpn: Some(peer.qpn), ..SoftConfig::default() };
        let mut b = qp_on(&SoftDevice::open(config).unwrap(), Some(Mtu::B256)).connect(&a.local);
        b.post(1, 0, 300);
        a.tx.set(0, &pattern(1, 300));
        a.stage(0, 300, Verb::Send { imm: Some(9) });
        a.flush();
        assert_eq!(b.next().result.unwrap().imm, Some(9));
        assert_eq!(b.rx.get(0, 300), pattern(1, 300));
        assert_eq!(a.stats.discarded_packets(), 84);
    });
}

#[test]
fn a_route_may_come_late() {
    packets_without_a_route_are_lost_and_later_ones_arrive([192, 0, 2, 1], None);
}

#[test]
fn a_route_may_come_late_under_faults() {
    packets_without_a_route_are_lost_and_later_ones_arrive([192, 0, 2, 2], Some("seed=1"));
}

/// On a network that others look at, each packet is a datagram as a NIC sends it, with an identification that the ICRC
/// has: also of packets that leave together, which on 127.x cross the kernel as one.
#[test]
fn packets_to_and_from_other_addresses_than_127_leave_alone() {
    in_a_network_of_its_own(|| {
        let Some(mut capture) = Capture::start() else { return };
        let (one, two) = (Ipv4Addr::new(192, 0, 2, 3), Ipv4Addr::new(192, 0, 2, 4));
        add_address(1, one);
        add_address(2, two);
        for (from, to) in [(one, two), (fresh_addr(), two)] {
            let (mut a, mut b) = connect(&open(from), &open(to), Some(Mtu::B256));
            for n in 0..20 {
                b.post(n, u64::from(n) * 512, 512);
                a.stage(0, 300, Verb::Send { imm: None });
            }
            a.flush();
            let seen: Vec<_> = (0..40).map(|_| capture.next_from(from).expect("40 packets")).collect();
            assert!(capture.next_from(from).is_none());
            for packet in &seen {
                assert_eq!((packet.ip_id, &packet.ip_header[6..8]), (0, &[0x40, 0][..]));
                assert_eq!(icrc::verify(&packet.flow, &packet.datagram), Some(0));
                let len = Packet::parse(&packet.datagram).unwrap().payload.len();
                assert!(len == 256 || len == 300 - 256, "{len}");
            }
            // As NICs do, and as it costs least: on loopback it is there, and nobody computes it.
            let have_checksum = seen.iter().filter(|packet| packet.udp_checksum != 0).count();
            assert_eq!(have_checksum, if from.is_loopback() { 40 } else { 0 });
            (0..20).for_each(|n| assert_eq!(b.next().id, n));
        }
    });
}

/// Runs are as long as before, since the interface counts their packets.
#[test]
fn what_still_fits_an_mtu_that_was_lowered_goes_on_and_what_does_not_is_an_error() {
    in_a_network_of_its_own(|| {
        let (mut a, mut b) = pair(Some(Mtu::B256));
        let (mut long, _to) = pair(Some(Mtu::B4096));
        configure("lo", &[(libc::SIOCSIFMTU, Setting { ifru_mtu: 400 })]);
        for n in 0..40 {
            b.post(n, 0, 600);
            a.stage(0, 600, Verb::Send { imm: Some(n) });
        }
        a.flush();
        (0..40).for_each(|n| assert_eq!(b.next().result.unwrap().imm, Some(n)));
        assert_eq!(a.stats.discarded_packets(), 0);

        for _ in 0..3 {
            long.stage(0, 300, Verb::Send { imm: None });
            long.stage(0, 1000, Verb::Send { imm: None });
            long.stage(0, 1000, Verb::Send { imm: None });
        }
        let errors: Vec<_> = (0..6).map(|_| long.send.flush().unwrap_err().to_string()).collect();
        assert!(errors.iter().all(|error| error.contains("take a smaller one")), "{errors:?}");
        assert_eq!(long.send.flush().unwrap(), 0);
        let counts: HashMap<_, _> = long.stats.snapshot().into_iter().collect();
        assert_eq!((counts["tx_packets"], counts["tx_discard_lasting"]), (3, 6), "each is counted once");
    });
}

/// Makes the loopback interface slow, so that packets wait in it; `false` where this machine cannot.
fn slow_down() -> bool {
    let limit = ["rate", "40mbit", "burst", "32kb", "limit", "64mb"];
    let tc = Command::new("tc").args(["qdisc", "add", "dev", "lo", "root", "tbf"]).args(limit).output();
    match tc {
        Ok(output) if output.status.success() => true,
        other => {
            eprintln!("SKIPPED: needs `tc` and the token bucket filter: {other:?}");
            false
        }
    }
}

/// Bytes of a message of which the socket does not take as many as the queue pair.
const LONG: usize = 8192;

/// Sends as many messages as the queue takes at a time, and receives them, until `full` times there was no room for some
/// of them. Says how many there were.
fn send_more_than_there_is_room_for(a: &mut End, b: &mut End, full: u64) -> u64 {
    let (mut sent, mut received) = (0, 0);
    let mut waiting = 0;
    let slot = |n: u32| (n % DEPTH) as usize * LONG;
    wait_for("no room, again and again", || {
        let retries = a.stats.snapshot().iter().find(|(name, _)| *name == "tx_retries").unwrap().1;
        while retries < full && sent - received < u64::from(DEPTH) {
            let n = u32::try_from(sent).unwrap();
            b.post(n, slot(n) as u64, LONG as u32);
            a.tx.set(0, &pattern(n, LONG));
            a.stage(0, LONG as u32, Verb::Send { imm: Some(n) });
            sent += 1;
        }
        waiting = a.send.flush().unwrap().max(waiting);
        while let Some(completion) = b.poll() {
            let n = u32::try_from(received).unwrap();
            assert_eq!((completion.id, completion.result.unwrap().imm), (n, Some(n)));
            assert_eq!(b.rx.get(slot(n), LONG), pattern(n, LONG));
            received += 1;
        }
        (retries >= full && received == sent).then_some(())
    });
    assert!(waiting > 0, "a flush says how many have to wait");
    sent
}

#[test]
fn what_finds_no_room_waits_and_leaves_in_order() {
    in_a_network_of_its_own(|| {
        if !slow_down() {
            return;
        }
        add_address(1, Ipv4Addr::new(192, 0, 2, 5));
        for from in [fresh_addr(), Ipv4Addr::new(192, 0, 2, 5)] {
            let device = open(from);
            let [a, b] = [(); 2].map(|()| qp_with(&device, Some(Mtu::B1024), LONG * DEPTH as usize));
            let (at_a, at_b) = (a.endpoint(), b.endpoint());
            let (mut a, mut b) = (a.connect(&at_b), b.connect(&at_a));
            let sent = send_more_than_there_is_room_for(&mut a, &mut b, 20);
            let packets = sent * (LONG as u64 / 1024);
            let [at_a, at_b] =
                [&a, &b].map(|end| end.stats.snapshot().into_iter().collect::<HashMap<_, _>>());
            assert_eq!((at_a["tx_messages"], at_a["tx_packets"], at_a["tx_discarded"]), (sent, packets, 0));
            assert_eq!((at_b["rx_messages"], at_b["rx_packets"]), (sent, packets));
            assert_eq!((at_b["rx_lost_packets"], at_b["rx_late_packets"]), (0, 0));
            assert_eq!(at_b["rx_socket_packets"], packets);
            assert!(DropReason::ALL.iter().all(|(_, name)| at_b[name] == 0), "{at_b:?}");
        }
    });
}

/// Needs no namespace: the kernel refuses broadcasts everywhere.
#[test]
fn a_refusal_that_lasts_is_an_error() {
    for faults in [None, Some("seed=1".parse().unwrap())] {
        let config = SoftConfig { addr: fresh_addr(), faults, ..SoftConfig::default() };
        let broadcast = Ipv4Addr::new(127, 255, 255, 255);
        let peer = PeerEndpoint { qpn: Qpn::new(0x77).unwrap(), rkey: None, ip: broadcast };
        let mut a = qp_on(&SoftDevice::open(config).unwrap(), None).connect(&peer);
        a.stage(0, 8, Verb::Send { imm: None });
        let error = a.send.flush().unwrap_err();
        assert!(matches!(&error, PostError::Os { call: "sendto", .. }), "{error}");
        assert!(error.to_string().contains("broadcast"), "{error}");
        assert_eq!(a.stats.discarded_packets(), 1);
        assert_eq!(a.stats.last_send_error().unwrap().raw_os_error(), Some(libc::EACCES));
        assert_eq!(a.send.flush().unwrap(), 0, "the refused packet is gone");
    }
}
