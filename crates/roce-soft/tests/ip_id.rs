//! What leaves the kernel: IP identification 0 with DF, which the ICRC relies on and which an unconnected socket
//! gets by path MTU discovery set to PROBE. Looks at the loopback interface, for which it needs CAP_NET_RAW; without that it says so and passes.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Read};
use std::time::Duration;

use common::{CapturedPacket, pair, wait_for};
use roce_core::{Mtu, Verb};
use roce_soft::wire::icrc;
use socket2::{Domain, Protocol, Socket, Type};

/// ETH_P_IP in network order, as AF_PACKET wants it.
const IPV4: i32 = 0x0800_u16.to_be() as i32;

#[test]
fn packets_leave_with_identification_zero() {
    let mut capture = match Socket::new(
        Domain::from(libc::AF_PACKET),
        Type::from(libc::SOCK_RAW),
        Some(Protocol::from(IPV4)),
    ) {
        Ok(socket) => socket,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            eprintln!("SKIPPED: capturing needs CAP_NET_RAW: {e}");
            return;
        }
        Err(e) => panic!("socket(AF_PACKET): {e}"),
    };
    capture.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (mut a, _b) = pair(Some(Mtu::B256));
    let mut seen = 0;
    wait_for("five packets", || {
        // Again and again, as a busy interface can overflow the capture.
        a.stage(0, 200, Verb::Send { imm: None });
        a.flush();
        let mut frame = [0; 4096];
        while let Ok(len) = capture.read(&mut frame) {
            let is_ours = len > 34 && frame[23] == 17 && frame[26..30] == a.local.ip.octets();
            if is_ours {
                let packet = CapturedPacket::from_frame(&frame[..len]);
                assert_eq!(packet.ip_id, 0);
                assert_eq!(packet.ip_header[6..8], [0x40, 0], "DF");
                assert_eq!(icrc::verify(&packet.flow, &packet.datagram), Some(0));
                seen += 1;
                break;
            }
        }
        (seen == 5).then_some(())
    });
}
