//! The TCP rendezvous over real sockets: both forms, and every way a peer can misbehave.

#![allow(clippy::unwrap_used)] // helpers of tests

mod lease;

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use roce_core::{Mtu, Qpn, Rkey};
use roce_rendezvous::socket::{Client, Form, Server, Timeouts};
use roce_rendezvous::{
    Blocking, Error, Geometry, MAX_LINE, Message, MessageError, Offer, Peer, Rendezvous, Step, TxMode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);
const PATIENT: Timeouts = Timeouts { peer: Some(LONG), message: LONG, connect: LONG };
const HASTY: Timeouts = Timeouts { peer: Some(SHORT), message: SHORT, connect: SHORT };

const GEOMETRY: Geometry =
    Geometry { slots: 64, slot_size: 384, frame_size: 256, mtu: Mtu::B1024, tx_mode: TxMode::WriteWithImm };
const CALLER: Offer = Offer {
    qpn: Qpn::from_low_bits(0x11),
    rkey: Rkey::new(0x1111_2222),
    ip: Ipv4Addr::new(10, 0, 0, 1),
    geometry: Some(GEOMETRY),
    lease: false,
};
const SERVICE: Offer = Offer {
    qpn: Qpn::from_low_bits(0xAB_CDEF),
    rkey: Rkey::new(0x89AB_CDEF),
    ip: Ipv4Addr::new(10, 0, 0, 2),
    geometry: Some(GEOMETRY),
    lease: false,
};
const CALLER_BYTES: [u8; 12] = [0x00, 0x00, 0x00, 0x11, 0x11, 0x11, 0x22, 0x22, 10, 0, 0, 1];
const SERVICE_BYTES: [u8; 12] = [0x00, 0xAB, 0xCD, 0xEF, 0x89, 0xAB, 0xCD, 0xEF, 10, 0, 0, 2];
const CALLER_LINE: &[u8] = b"{\"version\":1,\"qp\":17,\"rkey\":286335522,\"ip\":\"10.0.0.1\",\"slots\":64,\
    \"slot_size\":384,\"frame_size\":256,\"mtu\":1024,\"tx_mode\":\"write_with_imm\"}\n";
const SERVICE_LINE: &[u8] =
    b"{\"version\":1,\"qp\":11259375,\"rkey\":2309737967,\"ip\":\"10.0.0.2\",\"slots\":64,\
    \"slot_size\":384,\"frame_size\":256,\"mtu\":1024,\"tx_mode\":\"write_with_imm\"}\n";

/// An address of this machine that no other test uses, in this process or another.
fn own_ip() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [.., n] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, high | 0x80, low, n)
}

async fn server() -> Server {
    Server::bind((own_ip(), 0).into()).await.unwrap().with_timeouts(PATIENT)
}

fn client(addr: SocketAddr, form: Form) -> Client {
    Client::new(addr, form).with_timeouts(PATIENT)
}

fn connects(_: Peer) -> impl Future<Output = Result<(), Infallible>> + Send {
    ready(Ok(()))
}

fn fails(_: Peer) -> impl Future<Output = Result<(), io::Error>> + Send {
    ready(Err(io::Error::other("no GID for it")))
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, work).await.expect("the test takes too long")
}

/// Serves one caller that sends `bytes`, closes its sending side if told, and reads to the end.
async fn serve_raw(server: &mut Server, bytes: &[u8], close: bool) -> (Result<Peer, Error>, Vec<u8>) {
    let addr = server.local_addr();
    let caller = async {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        if close {
            stream.shutdown().await.unwrap();
        }
        let mut answer = Vec::new();
        // A reset is one way in which garbage is turned away.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    in_time(async { tokio::join!(server.accept_one(&SERVICE, connects), caller) }).await
}

async fn assert_serves(server: &mut Server) {
    let addr = server.local_addr();
    let mut client = client(addr, Form::Json);
    let (served, called) = in_time(async {
        tokio::join!(server.accept_one(&SERVICE, connects), client.exchange(&CALLER, connects))
    })
    .await;
    assert_eq!(served.unwrap(), CALLER.peer());
    assert_eq!(called.unwrap(), SERVICE.peer());
}

/// Calls a service that reads the offer, sends `bytes`, and closes or holds the connection.
async fn call_raw(
    form: Form,
    timeouts: Timeouts,
    bytes: &[u8],
    close: bool,
) -> (Result<Peer, Error>, Vec<u8>) {
    let listener = TcpListener::bind((own_ip(), 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let service = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut offer = vec![0; 4096];
        let n = stream.read(&mut offer).await.unwrap();
        offer.truncate(n);
        stream.write_all(bytes).await.unwrap();
        if close {
            stream.shutdown().await.unwrap();
        }
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        offer.extend(rest);
        offer
    };
    let mut client = Client::new(addr, form).with_timeouts(Timeouts { peer: Some(LONG), ..timeouts });
    in_time(async { tokio::join!(client.exchange(&CALLER, connects), service) }).await
}

#[tokio::test]
async fn both_forms_bring_both_ends_together() {
    let mut server = server().await;
    for form in [Form::Plain, Form::Json, Form::Plain] {
        let mut client = client(server.local_addr(), form);
        let (served, called) = in_time(async {
            tokio::join!(server.exchange(&SERVICE, connects), client.exchange(&CALLER, connects))
        })
        .await;
        let told = |offer: Offer| match form {
            Form::Plain => Offer { geometry: None, ..offer }.peer(),
            Form::Json => offer.peer(),
        };
        assert_eq!(served.unwrap(), told(CALLER));
        assert_eq!(called.unwrap(), told(SERVICE));
    }
}

#[tokio::test]
async fn the_service_speaks_both_forms_byte_for_byte() {
    let mut server = server().await;
    let (served, answer) = serve_raw(&mut server, &CALLER_BYTES, false).await;
    assert_eq!(answer, SERVICE_BYTES);
    assert_eq!(served.unwrap().endpoint, CALLER.peer().endpoint);

    let (served, answer) = serve_raw(&mut server, CALLER_LINE, true).await;
    assert_eq!(answer, SERVICE_LINE);
    assert_eq!(served.unwrap(), CALLER.peer());
}

#[tokio::test]
async fn the_caller_speaks_both_forms_byte_for_byte() {
    let (called, sent) = call_raw(Form::Plain, PATIENT, &SERVICE_BYTES, false).await;
    assert_eq!(sent, CALLER_BYTES);
    assert_eq!(called.unwrap().endpoint, SERVICE.peer().endpoint);

    let (called, sent) = call_raw(Form::Json, PATIENT, SERVICE_LINE, false).await;
    assert_eq!(sent, CALLER_LINE);
    assert_eq!(called.unwrap(), SERVICE.peer());
}

#[tokio::test]
async fn messages_may_arrive_in_pieces() {
    let mut server = server().await;
    for bytes in [&CALLER_BYTES[..], CALLER_LINE] {
        let addr = server.local_addr();
        let caller = async {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.set_nodelay(true).unwrap();
            for byte in bytes {
                stream.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            stream.shutdown().await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap()
        };
        let (served, answered) =
            in_time(async { tokio::join!(server.accept_one(&SERVICE, connects), caller) }).await;
        assert_eq!(served.unwrap().endpoint, CALLER.peer().endpoint);
        assert!(answered > 0);
    }
}

/// Nothing may reach the caller before the service's queue pair is connected: while the service connects, the
/// caller finds no byte; when the connect fails, it never finds one.
#[tokio::test]
async fn the_service_connects_before_it_answers() {
    let mut server = server().await;
    for offer in [&CALLER_BYTES[..], CALLER_LINE] {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(offer).await.unwrap();
        let served = server
            .accept_one(&SERVICE, async |_| {
                let answer = tokio::time::timeout(SHORT, stream.peek(&mut [0])).await;
                assert!(answer.is_err(), "answered before the queue pair was connected");
                stream.shutdown().await
            })
            .await;
        served.unwrap();
        assert!(in_time(stream.read_to_end(&mut Vec::new())).await.unwrap() > 0);
    }

    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    stream.write_all(&CALLER_BYTES).await.unwrap();
    let error = in_time(server.accept_one(&SERVICE, fails)).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    assert!(error.to_string().contains("no GID for it"));
    assert_eq!(in_time(stream.read_to_end(&mut Vec::new())).await.unwrap(), 0);
}

#[tokio::test]
async fn a_service_that_cannot_connect_says_so() {
    let mut server = server().await;
    for form in [Form::Json, Form::Plain] {
        let mut client = client(server.local_addr(), form);
        let connected = AtomicBool::new(false);
        let called = client.exchange(&CALLER, async |_| {
            connected.store(true, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        });
        let (served, called) =
            in_time(async { tokio::join!(server.accept_one(&SERVICE, fails), called) }).await;
        assert!(matches!(served, Err(Error::Connect { .. })));
        match (form, called.unwrap_err()) {
            (Form::Json, Error::Refused { reason, .. }) => {
                assert!(reason.contains("no GID for it"), "{reason}")
            }
            (Form::Plain, Error::ClosedEarly { got: 0, .. }) => {}
            (_, other) => panic!("{form}: {other}"),
        }
        assert!(!connected.load(Ordering::Relaxed));
    }
    assert_serves(&mut server).await;
}

/// In the JSON form the service returns only once the caller is connected, or knows that it is not.
#[tokio::test]
async fn the_service_learns_whether_the_caller_connected() {
    let mut server = server().await;
    let mut client = client(server.local_addr(), Form::Json);
    let (served, called) = in_time(async {
        tokio::join!(server.accept_one(&SERVICE, connects), client.exchange(&CALLER, fails))
    })
    .await;
    assert!(matches!(called, Err(Error::Connect { .. })));
    match served.unwrap_err() {
        Error::Refused { reason, .. } => assert!(reason.contains("no GID for it"), "{reason}"),
        other => panic!("{other}"),
    }
    assert_serves(&mut server).await;
}

#[tokio::test]
async fn geometry_that_does_not_fit_is_reported_on_both_ends() {
    let mut server = server().await;
    for (field, geometry) in [
        ("slots", Geometry { slots: 32, ..GEOMETRY }),
        ("slot_size", Geometry { slot_size: 512, ..GEOMETRY }),
        ("frame_size", Geometry { slot_size: 512, frame_size: 385, ..GEOMETRY }),
        ("mtu", Geometry { mtu: Mtu::B256, frame_size: 257, ..GEOMETRY }),
    ] {
        let offer = CALLER.with_geometry(geometry);
        let mut client = client(server.local_addr(), Form::Json);
        let (served, called) = in_time(async {
            tokio::join!(server.accept_one(&SERVICE, fails), client.exchange(&offer, fails))
        })
        .await;
        match served.unwrap_err() {
            Error::Message { source: MessageError::Incompatible { field: named, .. }, .. } => {
                assert_eq!(named, field);
            }
            other => panic!("{field}: {other}"),
        }
        match called.unwrap_err() {
            Error::Refused { reason, .. } => assert!(reason.starts_with(&format!("`{field}`")), "{reason}"),
            other => panic!("{field}: {other}"),
        }
    }
    assert_serves(&mut server).await;
}

#[tokio::test]
async fn a_caller_refuses_an_answer_that_does_not_fit_and_says_so() {
    let answer = Message::Offer(SERVICE.with_geometry(Geometry { slots: 32, ..GEOMETRY })).to_line();
    let (called, sent) = call_raw(Form::Json, PATIENT, answer.as_bytes(), false).await;
    assert!(matches!(
        called,
        Err(Error::Message { source: MessageError::Incompatible { field: "slots", .. }, .. })
    ));
    let told = Message::from_line(&sent[CALLER_LINE.len()..]).unwrap();
    assert!(matches!(&told, Message::Refusal(reason) if reason.starts_with("`slots`")), "{told:?}");
}

#[tokio::test]
async fn the_service_outlives_every_bad_caller() {
    let mut server = server().await;
    let mut long = vec![b' '; MAX_LINE + 5000];
    long[0] = b'{';

    let (served, _) = serve_raw(&mut server, b"GET / HTTP/1.1\r\n\r\n", false).await;
    assert!(
        matches!(served, Err(Error::Message { source: MessageError::UnknownForm(b'G'), .. })),
        "{served:?}"
    );
    let (served, _) = serve_raw(&mut server, &[0x01; 12], false).await;
    assert!(matches!(served, Err(Error::Message { source: MessageError::UnknownForm(1), .. })), "{served:?}");
    let (served, _) = serve_raw(&mut server, &[0; 12], false).await;
    let error = served.unwrap_err();
    assert!(
        matches!(&error, Error::Message { source: MessageError::Field { field: "ip", .. }, .. }),
        "{error}"
    );

    for (bytes, expected) in [(&[][..], 0), (&CALLER_BYTES[..5], 5), (&CALLER_LINE[..40], 40)] {
        let (served, _) = serve_raw(&mut server, bytes, true).await;
        assert!(matches!(served, Err(Error::ClosedEarly { got, .. }) if got == expected), "{served:?}");
    }

    let (served, told) = serve_raw(&mut server, &long, true).await;
    assert!(matches!(served, Err(Error::Message { source: MessageError::LineTooLong, .. })), "{served:?}");
    assert_told(&told, "longer than 4096 bytes");
    let (served, told) = serve_raw(&mut server, b"{nonsense}\n", true).await;
    assert!(matches!(served, Err(Error::Message { source: MessageError::NotJson(_), .. })), "{served:?}");
    assert_told(&told, "not a JSON object");
    let (served, told) = serve_raw(&mut server, b"{\"version\":1}\n", true).await;
    assert!(
        matches!(served, Err(Error::Message { source: MessageError::Field { field: "qp", .. }, .. })),
        "{served:?}"
    );
    assert_told(&told, "`qp`");
    let (served, _) = serve_raw(&mut server, b"{\"error\":\"gave up\"}\n", true).await;
    assert!(matches!(&served, Err(Error::Refused { reason, .. }) if reason == "gave up"), "{served:?}");
    let (served, _) = serve_raw(&mut server, &[CALLER_LINE, CALLER_LINE].concat(), true).await;
    assert!(matches!(served, Err(Error::Message { source: MessageError::Trailing, .. })), "{served:?}");

    server = server.with_timeouts(Timeouts { peer: Some(LONG), ..HASTY });
    for (bytes, step) in [
        (&[][..], Step::Read),
        (&CALLER_BYTES[..11], Step::Read),
        (&CALLER_LINE[..40], Step::Read),
        (CALLER_LINE, Step::Close),
    ] {
        let (served, _) = serve_raw(&mut server, bytes, false).await;
        assert!(matches!(served, Err(Error::Timeout { step: at, .. }) if at == step), "{served:?}");
    }
    assert_serves(&mut server.with_timeouts(PATIENT)).await;
}

/// The last line of `answer` is a refusal that contains `words`.
fn assert_told(answer: &[u8], words: &str) {
    let told = Message::from_line(answer);
    assert!(matches!(&told, Ok(Message::Refusal(reason)) if reason.contains(words)), "{told:?}");
}

/// Closing under a caller that still talks would reset its connection, and the refusal might never be read.
#[tokio::test]
async fn the_service_hears_out_a_caller_that_it_refuses() {
    let mut server = server().await;
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    let caller = async {
        stream.write_all(&[b'{'; 3 * MAX_LINE]).await.unwrap();
        let mut answer = vec![0];
        stream.read_exact(&mut answer).await.unwrap();
        for _ in 0..10 {
            stream.write_all(&[b'{'; 100]).await.expect("not reset");
            tokio::task::yield_now().await;
        }
        stream.shutdown().await.unwrap();
        stream.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (served, answer) =
        in_time(async { tokio::join!(server.accept_one(&SERVICE, connects), caller) }).await;
    assert!(served.is_err());
    assert_told(&answer, "longer than 4096 bytes");
}

#[tokio::test]
async fn the_service_outlives_100_bad_callers() {
    let mut server = server().await;
    let addr = server.local_addr();
    for n in 0..100 {
        let bytes: &[u8] = match n % 5 {
            0 => b"\xFFgarbage",
            1 => &CALLER_BYTES[..7],
            2 => b"{\"version\":1,",
            3 => b"{}\n",
            _ => b"",
        };
        let stalls = n % 10 >= 5;
        server = server.with_timeouts(if stalls { Timeouts { peer: Some(LONG), ..HASTY } } else { PATIENT });
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        if !stalls {
            drop(stream);
        }
        let served = in_time(server.accept_one(&SERVICE, connects)).await;
        assert!(served.is_err(), "{n}: {served:?}");
    }
    assert_serves(&mut server.with_timeouts(PATIENT)).await;
}

#[tokio::test]
async fn a_caller_that_crashed_comes_again() {
    let mut server = server().await;
    let addr = server.local_addr();
    let mut first = TcpStream::connect(addr).await.unwrap();
    first.write_all(&CALLER_LINE[..CALLER_LINE.len() - 1]).await.unwrap();
    // What a killed process leaves behind: the connection is reset in mid-message.
    first.set_zero_linger().unwrap();
    drop(first);
    let crashed = in_time(server.accept_one(&SERVICE, connects)).await;
    assert!(matches!(crashed, Err(Error::Io { .. } | Error::ClosedEarly { .. })), "{crashed:?}");
    assert_serves(&mut server).await;
}

#[tokio::test]
async fn a_connect_that_hangs_is_cut_off() {
    let hangs = |_| pending::<Result<(), Infallible>>();
    let mut server = server().await;
    let timeouts = Timeouts { connect: SHORT, ..PATIENT };
    let mut client = client(server.local_addr(), Form::Json);
    server = server.with_timeouts(timeouts);
    let (served, called) = in_time(async {
        tokio::join!(server.accept_one(&SERVICE, hangs), client.exchange(&CALLER, connects))
    })
    .await;
    assert!(matches!(served, Err(Error::Timeout { step: Step::Connect, .. })), "{served:?}");
    assert!(
        matches!(&called, Err(Error::Refused { reason, .. }) if reason.contains("queue pair")),
        "{called:?}"
    );

    client = client.with_timeouts(timeouts);
    server = server.with_timeouts(PATIENT);
    let (served, called) = in_time(async {
        tokio::join!(server.accept_one(&SERVICE, connects), client.exchange(&CALLER, hangs))
    })
    .await;
    assert!(matches!(called, Err(Error::Timeout { step: Step::Connect, .. })), "{called:?}");
    assert!(matches!(served, Err(Error::Refused { .. })), "{served:?}");
}

#[tokio::test]
async fn the_caller_names_what_is_wrong_with_a_service() {
    let (called, _) = call_raw(Form::Plain, PATIENT, b"SSH-2.0-x\r\n", true).await;
    assert!(
        matches!(called, Err(Error::Message { source: MessageError::UnknownForm(b'S'), .. })),
        "{called:?}"
    );
    let (called, _) = call_raw(Form::Json, PATIENT, &SERVICE_BYTES, true).await;
    assert!(
        matches!(called, Err(Error::Message { source: MessageError::OtherForm(Form::Plain), .. })),
        "{called:?}"
    );
    let (called, _) = call_raw(Form::Plain, PATIENT, SERVICE_LINE, true).await;
    assert!(
        matches!(called, Err(Error::Message { source: MessageError::OtherForm(Form::Json), .. })),
        "{called:?}"
    );
    for (form, bytes, expected) in [
        (Form::Plain, &[][..], 0),
        (Form::Plain, &SERVICE_BYTES[..3], 3),
        (Form::Json, &[][..], 0),
        (Form::Json, &SERVICE_LINE[..30], 30),
    ] {
        let (called, _) = call_raw(form, PATIENT, bytes, true).await;
        assert!(matches!(called, Err(Error::ClosedEarly { got, .. }) if got == expected), "{called:?}");
    }
    let (called, _) = call_raw(Form::Json, PATIENT, b"{\"error\":\"full\\u001b[2J\"}\n", true).await;
    let error = called.unwrap_err();
    assert!(matches!(&error, Error::Refused { reason, .. } if reason == "full\u{1b}[2J"), "{error}");
    assert!(!error.to_string().contains('\u{1b}'), "a peer's words must not reach a terminal raw");

    for (form, bytes) in [(Form::Plain, &SERVICE_BYTES[..3]), (Form::Json, &SERVICE_LINE[..30])] {
        let (called, _) = call_raw(form, HASTY, bytes, false).await;
        assert!(matches!(called, Err(Error::Timeout { step: Step::Read, .. })), "{called:?}");
    }
}

#[tokio::test]
async fn the_caller_waits_for_a_late_service() {
    let addr = Server::bind((own_ip(), 0).into()).await.unwrap().local_addr();
    let mut early = client(addr, Form::Json);
    let mut hasty = Client::new(addr, Form::Json).with_timeouts(HASTY);
    let error = in_time(hasty.exchange(&CALLER, connects)).await.unwrap_err();
    assert!(matches!(error, Error::NoService { timeout: SHORT, .. }), "{error}");

    let call = tokio::spawn(async move { early.exchange(&CALLER, connects).await });
    tokio::time::sleep(SHORT).await; // so that it finds nobody first; the test holds either way
    let mut server = Server::bind(addr).await.unwrap().with_timeouts(PATIENT);
    assert_eq!(in_time(server.accept_one(&SERVICE, connects)).await.unwrap(), CALLER.peer());
    assert_eq!(in_time(call).await.unwrap().unwrap(), SERVICE.peer());
}

#[tokio::test]
async fn a_service_may_give_up_waiting_and_wait_again() {
    let mut server = server().await.with_timeouts(HASTY);
    let error = in_time(server.accept_one(&SERVICE, connects)).await.unwrap_err();
    assert!(matches!(error, Error::NoCaller { timeout: SHORT, .. }), "{error}");

    server = server.with_timeouts(PATIENT);
    let cancelled = tokio::time::timeout(SHORT, server.accept_one(&SERVICE, connects)).await;
    assert!(cancelled.is_err());
    assert_serves(&mut server).await;
}

#[tokio::test]
async fn an_address_that_is_taken_is_a_typed_error() {
    let server = server().await;
    let error = Server::bind(server.local_addr()).await.unwrap_err();
    assert!(matches!(error, Error::Bind { addr, .. } if addr == server.local_addr()), "{error}");
}

#[test]
fn blocking_callers_need_no_runtime() {
    let mut server = Blocking::bind((own_ip(), 0).into(), PATIENT).unwrap();
    let addr = server.get_ref().local_addr();
    let call = thread::spawn(move || {
        let mut client = Blocking::client(client(addr, Form::Json)).unwrap();
        client.exchange(&CALLER, |_| Ok::<_, Infallible>(()))
    });
    let mut connected_to = None;
    let served = server.exchange(&SERVICE, |peer| {
        connected_to = Some(peer);
        Ok::<_, Infallible>(())
    });
    assert_eq!(served.unwrap(), CALLER.peer());
    assert_eq!(connected_to, Some(CALLER.peer()));
    assert_eq!(call.join().unwrap().unwrap(), SERVICE.peer());
}

#[tokio::test]
async fn a_blocking_rendezvous_in_async_code_is_a_typed_error() {
    let error = Blocking::bind((own_ip(), 0).into(), PATIENT).unwrap_err();
    assert!(matches!(error, Error::Runtime { .. }), "{error}");
}
