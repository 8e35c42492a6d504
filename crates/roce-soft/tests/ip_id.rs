//! What leaves the kernel: IP identification 0 with DF, which the ICRC relies on and which an unconnected socket
//! gets by path MTU discovery set to PROBE. Looks at the loopback interface, for which it needs CAP_NET_RAW; without that it says so and passes.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Capture, pair, wait_for};
use roce_core::{Mtu, Verb};
use roce_soft::wire::icrc;

#[test]
fn packets_leave_with_identification_zero() {
    let Some(mut capture) = Capture::start() else { return };
    let (mut a, _b) = pair(Some(Mtu::B256));
    let mut seen = 0;
    wait_for("five packets", || {
        // Again and again, as a busy interface can overflow the capture.
        a.stage(0, 200, Verb::Send { imm: None });
        a.flush();
        if let Some(packet) = capture.next_from(a.local.ip) {
            assert_eq!(packet.ip_id, 0);
            assert_eq!(packet.ip_header[6..8], [0x40, 0], "DF");
            assert_eq!(icrc::verify(&packet.flow, &packet.datagram), Some(0));
            seen += 1;
        }
        (seen == 5).then_some(())
    });
}
