//! What is refused, and what is no request at all.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use roce_dispatch::caller::{CallError, Caller};
use roce_dispatch::rpc::Status;
use roce_rendezvous::socket::{Client, Form, Timeouts};
use roce_rendezvous::{Blocking, Offer};
use roce_tools::Error;
use roce_tools::call::Session;
use roce_tools::service::ServiceConfig;
use roce_transport::{SpinPolicy, Transceiver, Unified};

use crate::harness::address;
use crate::support::{
    CEILING, Holdings, Service, call, call_many, http, session_config, transceiver, wait_until,
};

/// Random enough, and the same in every run.
fn noise() -> impl FnMut() -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn errors_are_told_at_once_and_by_name() {
    let service = Service::with_plugin("--slots 64");
    let session = service.session(transceiver());
    for (function, args, status) in [
        ("nobody", &[][..], Status::UNKNOWN_FUNCTION),
        ("sum", &[1, 2, 3][..], Status::from_code(1)),
        ("c_silent", &[], Status::NO_RESPONSE),
        ("c_too_long", &[], Status::RESULT_TOO_LARGE),
        ("c_refuse", &[], Status::from_code(42)),
    ] {
        let outcome = call(session.caller(), function, args);
        assert!(matches!(outcome, Err(CallError::Remote { status: s, .. }) if s == status), "{outcome:?}");
    }
    assert_eq!(call(session.caller(), "c_reverse", &[1, 2, 3]).expect("answered"), [3, 2, 1]);
    assert_eq!(call(session.caller(), "c_reverse", &[7; 232]).expect("a whole slot"), [7; 232]);
    let too_long = call(session.caller(), "echo", &[0; 233]);
    assert!(matches!(too_long, Err(CallError::TooLong { len: 233, room: 232 })), "{too_long:?}");
    for (event, count) in
        [("unknown_function", 1), ("handler_errors", 2), ("no_response", 1), ("result_too_large", 1)]
    {
        assert_eq!(
            service.metric(&format!("roce_service_dispatch_total{{event=\"{event}\"}}")),
            count,
            "{event}"
        );
    }
}

/// A link to the service that sends whatever it is told to.
fn raw_link(service: &Service) -> (Transceiver, Unified) {
    let transceiver = Transceiver::new(transceiver().build().expect("a valid configuration"));
    let offer = Offer::from(transceiver.setup().expect("set-up"));
    let client = Client::new(service.addr, Form::Json);
    let mut rendezvous = Blocking::<Client>::client(client).expect("a runtime");
    rendezvous
        .exchange(&offer, |peer| transceiver.connect(&peer.endpoint))
        .expect("the service takes callers");
    let link = transceiver.take_unified().expect("once");
    (transceiver, link)
}

fn random_messages(options: &str) {
    const MESSAGES: u32 = 1024;
    let service = Service::start(&format!("--slots 64 --metrics 127.0.0.1:0 {options}"));
    let (_transceiver, mut link) = raw_link(&service);
    let mut next = noise();
    for n in 0..MESSAGES {
        let slot = n % 64;
        for word in 0..32 {
            link.tx_slot(slot).copy_from(8 * word, &next().to_le_bytes());
        }
        link.tx_publish(slot).expect("open");
        // Half a ring at a time, so that none overwrites another.
        if n % 32 == 31 {
            service.wait_for_metric("roce_service_dispatch_total{event=\"bad_magic\"}", u64::from(n) + 1);
        }
    }

    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for len in 0..500 {
        let bytes: Vec<u8> = (0..len).map(|_| next().to_le_bytes()[0]).collect();
        stranger.send_to(&bytes, (service.ip, 4791)).expect("sent");
    }
    let caller = Caller::new(link).expect("frames hold a header");
    assert_eq!(call_many(&caller, 500, 4, CEILING).answered, 500, "the same peer is served");
    let session = service.session(transceiver());
    assert_eq!(call_many(session.caller(), 500, 4, CEILING).answered, 500, "another one is served");
    assert_eq!(service.program.stop().code, Some(0));
}

#[test]
fn random_messages_are_counted_and_harm_nobody_in_ring_shape() {
    random_messages("--dispatch ring");
}

#[test]
fn random_messages_are_counted_and_harm_nobody_in_unified_shape() {
    random_messages("--dispatch unified");
}

#[test]
fn rings_that_do_not_fit_are_refused_by_name() {
    let service = Service::start("--slots 8");
    let refused = Session::connect(service.session_config(transceiver())).expect_err("64 slots");
    let Error::Rendezvous(error) = &refused else { panic!("{refused}") };
    assert!(error.to_string().contains("slots"), "{error}");
    let session = service.session(transceiver().num_pages(8));
    assert_eq!(call(session.caller(), "echo", b"fits").expect("answered"), b"fits");
}

#[test]
fn a_stranger_at_the_rendezvous_keeps_nobody_out() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    for garbage in ["GET / HTTP/1.1\r\n\r\n", "{\"version\":7}\n", "{}\n", "\0\0\0\u{1}"] {
        let mut stream = TcpStream::connect(service.addr).expect("it listens");
        stream.write_all(garbage.as_bytes()).expect("it reads");
    }
    let session = service.session(transceiver());
    assert_eq!(call(session.caller(), "echo", b"in").expect("answered"), b"in");
    service.wait_for_metric("roce_service_rendezvous_errors_total", 4);
}

/// Callers whose exchange is not over that a service has at a time.
const SIDE_BY_SIDE: usize = 128;
/// Exchanges that have a transceiver at a time.
const TRANSCEIVERS: usize = 64;

fn strangers(service: SocketAddr, times: usize, said: &str) -> Vec<TcpStream> {
    let stranger = |_| {
        let mut stream = TcpStream::connect(service).expect("it listens");
        stream.write_all(said.as_bytes()).expect("it reads");
        stream
    };
    (0..times).map(stranger).collect()
}

/// Strangers that stall, each at one of the steps of an exchange. One after the other they would keep a caller out for
/// minutes.
#[test]
fn strangers_that_stall_delay_nobody() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    let before = Holdings::of(&service.program);
    let offer = format!("{{\"version\":1,\"qp\":99,\"rkey\":1,\"ip\":\"{}\",\"lease\":true}}\n", address());
    let said = ["", "\0\0", &offer[..30], &offer];
    let stalled = said.map(|said| strangers(service.addr, TRANSCEIVERS / 4 - 1, said));
    let session = service.session(transceiver());
    assert_eq!(call(session.caller(), "echo", b"in").expect("answered"), b"in");
    session.leave();
    drop(stalled);
    wait_until("all is given back", || Holdings::of(&service.program) == before);
    assert_eq!(service.metric("roce_service_peers_total"), 1);
}

#[test]
fn a_flood_of_strangers_takes_only_so_much() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    let before = Holdings::of(&service.program);
    let flood = strangers(service.addr, 3 * SIDE_BY_SIDE, "");
    // One more for whoever asks for the metrics, and one for whom somebody gives way.
    let most = before.descriptors + SIDE_BY_SIDE + 2;
    let failed = "roce_service_rendezvous_errors_total";
    wait_until("all have had their time", || {
        let now = Holdings::of(&service.program).descriptors;
        assert!(now <= most, "{now} descriptors, {most} at most");
        service.metric(failed) == flood.len() as u64
    });
    let session = service.session(transceiver());
    assert_eq!(call(session.caller(), "echo", b"in").expect("answered"), b"in");
}

/// The service would wait for them for an hour, and each of them has been there longer than whoever calls last.
#[test]
fn strangers_who_make_no_offer_give_way() {
    let (stop, ready) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
    let config = ServiceConfig {
        transceiver: transceiver().build().expect("a valid configuration"),
        spin: SpinPolicy::default(),
        answers_per_flush: 1,
        listen: SocketAddr::from((address(), 0)),
        timeouts: Timeouts { message: Duration::from_secs(3600), ..Timeouts::default() },
        metrics: None,
        max_peers: 4,
        idle_timeout: None,
        graph: None,
        plugins: Vec::new(),
    };
    let serving = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let service = roce_tools::service::Service::bind(config).await.expect("it has what it needs");
                ready.0.send(service.rendezvous_addr()).expect("the test waits");
                service.run(&stop).await
            })
        }
    });
    let addr = ready.1.recv().expect("it listens");
    let held = ["", "\0\0", "{\"version\":1"].map(|said| strangers(addr, SIDE_BY_SIDE, said));
    let session = Session::connect(session_config(addr, transceiver())).expect("strangers give way");
    assert_eq!(call(session.caller(), "echo", b"in").expect("answered"), b"in");
    session.leave();
    stop.store(true, Ordering::Relaxed);
    assert_eq!(serving.join().expect("no panic"), 2, "the call and the farewell");
    drop(held);
}

/// A caller without a lease that has made its offer.
fn offer_to(service: &Service, qp: u32, rkey: u32, ip: Ipv4Addr) -> TcpStream {
    let mut stream = TcpStream::connect(service.addr).expect("it listens");
    let offer = format!("{{\"version\":1,\"qp\":{qp},\"rkey\":{rkey},\"ip\":\"{ip}\"}}\n");
    stream.write_all(offer.as_bytes()).expect("it reads");
    stream
}

/// Takes the answer, and says that the caller is connected.
fn conclude(mut stream: TcpStream) {
    let mut answer = String::new();
    BufReader::new(&mut stream).read_line(&mut answer).expect("it is not reset");
    assert!(answer.starts_with("{\"version\":1,"), "{answer:?}");
    stream.shutdown(Shutdown::Both).expect("it is open");
}

/// Honest callers, more of them than are served side by side: the others wait for their turn.
#[test]
fn a_crowd_of_callers_is_answered() {
    let service = Service::start("--slots 64 --max-peers 4 --metrics 127.0.0.1:0");
    let ip = address();
    let callers: Vec<_> = (0..100).map(|n| offer_to(&service, n, 1, ip)).collect();
    callers.into_iter().for_each(conclude);
    service.wait_for_metric("roce_service_peers_total", 100);
    assert_eq!(service.metric("roce_service_rendezvous_errors_total"), 0);
}

/// The device gives a dead process's queue pair to the next one, with another key. Nothing else lets the old ones go.
#[test]
fn a_queue_pair_has_one_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let go = dir.path().join("go");
    let service = Service::with_plugin("--slots 64 --idle-timeout-ms 0");
    let first = service.session(transceiver());
    let ours = first.transceiver().endpoint().expect("connected");
    let path = go.to_str().expect("UTF-8").to_owned();
    let first = thread::spawn(move || call(first.caller(), "c_wait_for_file", path.as_bytes()));
    wait_until("a function runs", || service.metric("roce_service_dispatch_total{event=\"requests\"}") == 1);

    for total in 2..=4 {
        conclude(offer_to(&service, ours.qpn.get(), ours.rkey.get() ^ total, ours.ip));
        service.wait_for_metric("roce_service_peers_total", total.into());
    }
    // The first one's function still runs, so it is not over.
    service.wait_for_metric("roce_service_peers", 2);
    let label = format!("roce_service_peer_requests_total{{peer=\"{}:{:#x}\"}} ", ours.ip, ours.qpn.get());
    let text = service.metrics();
    assert_eq!(text.lines().filter(|line| line.starts_with(&label)).count(), 1, "{text}");
    assert!(matches!(first.join().expect("no panic"), Err(CallError::Closed)));
    fs::write(&go, []).expect("a file");
    service.wait_for_metric("roce_service_peers", 1);
}

#[test]
fn strangers_that_ask_for_metrics_and_stall_are_few_at_a_time() {
    const SIDE_BY_SIDE: usize = 16;
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    let before = Holdings::of(&service.program);
    let connect = |_| TcpStream::connect(service.metrics_addr()).expect("it listens");
    let strangers: Vec<_> = (0..2 * SIDE_BY_SIDE).map(connect).collect();
    // It came behind them all, and is answered.
    assert_eq!(service.metric("roce_service_peers"), 0);
    assert!(Holdings::of(&service.program).descriptors <= before.descriptors + SIDE_BY_SIDE);
    drop(strangers);
    wait_until("all is given back", || Holdings::of(&service.program) == before);
}

#[test]
fn metrics_are_text_over_http() {
    let service = Service::start("--slots 64 --metrics 127.0.0.1:0");
    let session = service.session(transceiver());
    assert_eq!(call_many(session.caller(), 10, 1, CEILING).answered, 10);
    service.wait_for_metric("roce_service_peers", 1);
    let text = service.metrics();
    for line in [
        "# TYPE roce_service_peers gauge",
        "# TYPE roce_service_dispatch_total counter",
        "roce_service_peers_total 1",
        "roce_service_dispatch_total{event=\"requests\"} 10",
        "roce_service_dispatch_total{event=\"responses\"} 10",
        "roce_service_transport_total{event=\"received\"} 10",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line:?} in\n{text}");
    }
    let peer = session.transceiver().endpoint().expect("connected");
    let label = format!("roce_service_peer_requests_total{{peer=\"{}:{:#x}\"}}", peer.ip, peer.qpn.get());
    assert_eq!(service.metric(&label), 10);

    let addr = service.metrics_addr();
    assert!(http(addr, "GET /nothing HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(http(addr, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
}
