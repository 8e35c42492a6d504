//! Requests that no FPGA should send: the bridge must get past them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use roce_core::{PeerEndpoint, Qpn, Rkey};
use roce_dispatch::rpc::{HEADER_LEN, Request, Response, function_id};
use roce_transport::{Config, RingEnds, Transceiver, TxMode};
use tempfile::tempdir;

use crate::harness::{address, bridge_for, report};

const PAGES: u32 = 64;
const FRAME: u32 = 32;
const MESSAGES: u32 = 300;
/// In mid-run, twice in a row, and in the last slot of the ring.
const STRANGE: [u32; 4] = [100, 101, 127, 250];
/// Requests on their way at once; the last one of a row may be strange.
const AT_ONCE: u32 = 16;
const CEILING: Duration = Duration::from_secs(60);

fn request(id: u32) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    let header =
        Request { function_id: function_id("rpc_increment"), arg_len: 8, request_id: id, ptp_timestamp: 0 };
    header.emit(&mut frame);
    frame.extend(u64::from(id).to_le_bytes());
    if STRANGE.contains(&id) {
        frame[0] ^= 0xFF;
    }
    frame
}

/// What an FPGA does: a request into each slot in turn, no more at once than the ring holds. Gives the ids that
/// were answered, each right.
fn ask(ends: &mut RingEnds) -> BTreeSet<u32> {
    let mut answered = BTreeSet::new();
    let deadline = Instant::now() + CEILING;
    let mut asked = 0;
    let mut expected = 0;
    while answered.len() < expected || asked < MESSAGES {
        assert!(Instant::now() < deadline, "{expected} answers are due, these came: {answered:?}");
        let slot = asked % PAGES;
        if asked < MESSAGES && expected < answered.len() + AT_ONCE as usize && ends.tx.is_free(slot) {
            ends.tx.slot(slot).copy_from(0, &request(asked));
            ends.tx.publish(slot);
            expected += usize::from(!STRANGE.contains(&asked));
            asked += 1;
        }
        let Some(slot) = ends.rx.next_published() else {
            thread::yield_now();
            continue;
        };
        let mut frame = [0; FRAME as usize];
        ends.rx.peek(slot).expect("published").bytes().copy_to(0, &mut frame);
        ends.rx.claim(slot);
        let answer = Response::parse(&frame).expect("an answer");
        assert!(answer.status.is_success(), "{answer:?}");
        assert!(answered.insert(answer.request_id), "{} twice", answer.request_id);
        let right = u64::from(answer.request_id).to_le_bytes().map(|byte| byte.wrapping_add(1));
        assert_eq!(frame[HEADER_LEN..], right);
    }
    answered
}

#[test]
fn requests_with_a_bad_magic_stop_nothing() {
    for mode in ["", "--unified"] {
        let ip = address();
        let config = Config::builder(format!("soft:{ip}"))
            .num_pages(PAGES)
            .frame_size(FRAME)
            .tx_mode(TxMode::WriteWithImm)
            .build()
            .expect("valid");
        let fpga = Arc::new(Transceiver::new(config));
        let end = fpga.setup().expect("an address of its own");
        let dir = tempdir().expect("a directory");
        let file = dir.path().join("bridge.json");
        let (bridge, reach) = bridge_for(ip, end.qpn.get(), &format!("{mode} --json {}", file.display()));
        let qpn = Qpn::new(reach.qpn).expect("its number");
        fpga.connect(&PeerEndpoint { qpn, rkey: Some(Rkey::new(reach.rkey)), ip: reach.ip })
            .expect("connected");
        let mut ends = fpga.take_ends().expect("once");
        let monitor = {
            let fpga = Arc::clone(&fpga);
            thread::spawn(move || fpga.blocking_monitor())
        };
        let answered = ask(&mut ends);
        assert_eq!(answered, (0..MESSAGES).filter(|id| !STRANGE.contains(id)).collect(), "{mode}");
        fpga.close();
        monitor.join().expect("it ends").expect("it was closed");

        assert_eq!(bridge.stop().code, Some(0), "{mode}");
        let report = report(&file);
        assert_eq!((&report["stats"]["received"], &report["stats"]["sent"]), (&300.into(), &296.into()));
        assert_eq!(
            (&report["dispatch"]["bad_magic"], &report["dispatch"]["responses"]),
            (&4.into(), &296.into())
        );
    }
}
