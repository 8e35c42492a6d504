//! Leases: the connection that stays, and how each end learns that the other is gone.

use std::sync::mpsc::{Receiver, channel};

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use roce_rendezvous::socket::{Lease, LeaseEnd, Watch};

use super::*;

const LEASING_CALLER: Offer = CALLER.with_lease(true);
const LEASING_SERVICE: Offer = SERVICE.with_lease(true);
const CONNECTED: &[u8] = b"{\"connected\":true}\n";

/// An offer's line that asks for a lease.
fn leasing(line: &[u8]) -> Vec<u8> {
    [&line[..line.len() - 2], b",\"lease\":true}\n"].concat()
}

type Met = (Peer, Option<Lease>);

async fn meet(server: &Server, caller: &Offer, service: &Offer, form: Form) -> (Met, Met) {
    let mut client = client(server.local_addr(), form);
    let serve = async { server.accept().await?.request().await?.answer(service, connects).await };
    let (served, called) = in_time(async { tokio::join!(serve, client.meet(caller, connects)) }).await;
    (served.unwrap(), called.unwrap())
}

/// Both ends' leases, the service's first.
async fn leases(server: &Server) -> (Lease, Lease) {
    let ((caller, at_service), (service, at_caller)) =
        meet(server, &LEASING_CALLER, &LEASING_SERVICE, Form::Json).await;
    assert_eq!((caller, service), (CALLER.peer(), SERVICE.peer()));
    (at_service.unwrap(), at_caller.unwrap())
}

/// Serves a caller that asks for a lease and sends `bytes` once it has the answer; if told, no more ever.
async fn serve_raw(server: &Server, bytes: &[u8], close: bool) -> (Result<Met, Error>, TcpStream) {
    let caller = async {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(&leasing(CALLER_LINE)).await.unwrap();
        let mut answer = vec![0; leasing(SERVICE_LINE).len()];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, leasing(SERVICE_LINE));
        stream.write_all(bytes).await.unwrap();
        if close {
            stream.shutdown().await.unwrap();
        }
        stream
    };
    let serve = async { server.accept().await?.request().await?.answer(&LEASING_SERVICE, connects).await };
    in_time(async { tokio::join!(serve, caller) }).await
}

#[tokio::test]
async fn each_end_learns_that_the_other_is_gone() {
    let server = server().await;
    let (mut at_service, at_caller) = leases(&server).await;
    let early = tokio::time::timeout(SHORT, at_service.ended()).await;
    assert!(early.is_err(), "nobody is gone yet: {early:?}");
    drop(at_caller);
    let end = in_time(at_service.ended()).await;
    assert!(matches!(end, LeaseEnd::Closed), "{end:?}");

    let (at_service, mut at_caller) = leases(&server).await;
    drop(at_service);
    let end = in_time(at_caller.ended()).await;
    assert!(matches!(end, LeaseEnd::Closed), "{end:?}");
}

#[tokio::test]
async fn a_lease_takes_two() {
    let server = server().await;
    for (caller, service, form) in [
        (LEASING_CALLER, SERVICE, Form::Json),
        (CALLER, LEASING_SERVICE, Form::Json),
        (LEASING_CALLER, LEASING_SERVICE, Form::Plain),
    ] {
        // Which returns only once the connection is closed, in the JSON form.
        let ((_, at_service), (_, at_caller)) = meet(&server, &caller, &service, form).await;
        assert!(at_service.is_none() && at_caller.is_none(), "{caller:?} and {service:?}");
    }
}

/// Ends that know of no lease: what they send and see is what it always was.
#[tokio::test]
async fn older_ends_see_nothing_of_it() {
    let server = server().await;
    for (bytes, expected) in [(&CALLER_BYTES[..], &SERVICE_BYTES[..]), (CALLER_LINE, SERVICE_LINE)] {
        let caller = async {
            let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let serve =
            async { server.accept().await?.request().await?.answer(&LEASING_SERVICE, connects).await };
        let (served, answer) = in_time(async { tokio::join!(serve, caller) }).await;
        assert_eq!(answer, expected);
        assert!(served.unwrap().1.is_none());
    }

    let listener = TcpListener::bind((own_ip(), 0)).await.unwrap();
    let mut client = client(listener.local_addr().unwrap(), Form::Json);
    let service = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut offer = vec![0; leasing(CALLER_LINE).len()];
        stream.read_exact(&mut offer).await.unwrap();
        stream.write_all(SERVICE_LINE).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        (offer, rest)
    };
    let (called, (offer, rest)) =
        in_time(async { tokio::join!(client.meet(&LEASING_CALLER, connects), service) }).await;
    assert_eq!((offer, rest), (leasing(CALLER_LINE), vec![]), "it closes, and says nothing more");
    assert!(called.unwrap().1.is_none());
}

#[tokio::test]
async fn a_caller_that_is_not_connected_has_no_lease() {
    let mut server = server().await;
    let (served, _) = serve_raw(&server, b"{\"error\":\"no GID\"}\n", true).await;
    assert!(matches!(&served, Err(Error::Refused { reason, .. }) if reason == "no GID"), "{served:?}");
    for bytes in [CALLER_LINE, &[CONNECTED, b"more"].concat()] {
        let (served, _) = serve_raw(&server, bytes, true).await;
        assert!(matches!(served, Err(Error::Message { source: MessageError::Trailing, .. })), "{served:?}");
    }

    let (served, _) = serve_raw(&server, b"", true).await;
    assert!(matches!(served, Err(Error::ClosedEarly { got: 0, .. })), "{served:?}");

    server = server.with_timeouts(Timeouts { peer: Some(LONG), ..HASTY });
    let (served, _stream) = serve_raw(&server, b"", false).await;
    assert!(matches!(served, Err(Error::Timeout { step: Step::Close, .. })), "{served:?}");
}

#[tokio::test]
async fn the_service_learns_why_a_leasing_caller_did_not_connect() {
    let server = server().await;
    let mut client = client(server.local_addr(), Form::Json);
    let serve = async { server.accept().await?.request().await?.answer(&LEASING_SERVICE, connects).await };
    let (served, called) = in_time(async { tokio::join!(serve, client.meet(&LEASING_CALLER, fails)) }).await;
    assert!(matches!(called, Err(Error::Connect { .. })), "{called:?}");
    assert!(matches!(&served, Err(Error::Refused { reason, .. }) if reason.contains("no GID")), "{served:?}");
}

/// However much it says, one byte of it is read.
#[tokio::test]
async fn an_end_that_speaks_is_done_with() {
    let server = server().await;
    let (served, mut stream) = serve_raw(&server, CONNECTED, false).await;
    let mut lease = served.unwrap().1.unwrap();
    let flood = async {
        let block = vec![b'x'; 1 << 20];
        while stream.write_all(&block).await.is_ok() {}
    };
    let notice = async {
        let end = lease.ended().await;
        drop(lease);
        end
    };
    let (end, ()) = in_time(async { tokio::join!(notice, flood) }).await;
    assert!(matches!(end, LeaseEnd::Spoke), "{end:?}");
}

#[tokio::test]
async fn a_connection_that_is_reset_ends_the_lease() {
    let server = server().await;
    let (served, stream) = serve_raw(&server, CONNECTED, false).await;
    stream.set_zero_linger().unwrap();
    drop(stream);
    let end = in_time(served.unwrap().1.unwrap().ended()).await;
    assert!(matches!(end, LeaseEnd::Broken(_)), "{end:?}");
}

/// Whether all that the socket sent has been acknowledged, by the kernel's table: `sl local remote state tx:rx …`.
fn is_acknowledged(stream: &TcpStream) -> bool {
    let SocketAddr::V4(local) = stream.local_addr().unwrap() else { panic!("IPv4") };
    let local = format!("{:08X}:{:04X}", u32::from_le_bytes(local.ip().octets()), local.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = sockets.find(|fields| fields[1] == local).expect("it is open");
    ours[4].starts_with("00000000:")
}

/// A socket in repair closes without a word, as when its machine loses its power: only who asks learns of it.
#[tokio::test]
async fn a_peer_that_vanishes_without_a_word_is_missed() {
    let server = server().await;
    let (served, stream) = serve_raw(&server, CONNECTED, false).await;
    let mut lease = served.unwrap().1.unwrap();
    // What comes late for a socket that is no more would be answered by a reset.
    in_time(async {
        while !is_acknowledged(&stream) {
            tokio::time::sleep(SHORT).await;
        }
    })
    .await;
    match setsockopt(&stream, sockopt::TcpRepair, &1) {
        Ok(()) => {}
        Err(Errno::EPERM) => {
            eprintln!("skipped: to vanish without a word takes CAP_NET_ADMIN");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    drop(stream);
    let end = tokio::time::timeout(3 * LONG, lease.ended()).await.expect("it is asked after");
    assert!(matches!(end, LeaseEnd::Broken(_)), "{end:?}");
}

/// A lease that a thread watches, and what the thread says.
fn watched(lease: Lease) -> (Watch, Receiver<LeaseEnd>) {
    let (say, heard) = channel();
    let watch = lease.watch(move |end| say.send(end).expect("somebody listens"));
    (watch.unwrap(), heard)
}

#[test]
fn a_thread_watches_a_lease() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(server());
    let addr = server.local_addr();
    let (go, gone) = channel::<()>();
    // Callers without a runtime of their own to keep.
    let caller = thread::spawn(move || {
        let mut client = Blocking::client(client(addr, Form::Json)).unwrap();
        let mut meet = || client.meet(&LEASING_CALLER, |_| Ok::<_, Infallible>(())).unwrap().1.unwrap();
        let (_watch, heard) = watched(meet());
        let end = heard.recv_timeout(LONG).unwrap();
        assert!(matches!(end, LeaseEnd::Closed), "{end:?}");

        let (watch, heard) = watched(meet());
        gone.recv().unwrap();
        drop(watch);
        assert!(heard.recv().is_err(), "this end went by itself");
    });
    let serve = || async {
        let request = server.accept().await?.request().await?;
        Ok::<_, Error>(request.answer(&LEASING_SERVICE, connects).await?.1.unwrap())
    };
    let first = runtime.block_on(in_time(serve())).unwrap();
    drop(first);
    let mut second = runtime.block_on(in_time(serve())).unwrap();
    go.send(()).unwrap();
    let end = runtime.block_on(in_time(second.ended()));
    assert!(matches!(end, LeaseEnd::Closed), "{end:?}");
    caller.join().unwrap();
}

/// Callers that stall, before their offer, in it, and after the answer.
#[tokio::test]
async fn callers_are_served_side_by_side() {
    let server = server().await;
    let mut stalled = Vec::new();
    for bytes in [&[][..], &CALLER_LINE[..40], CALLER_LINE, &leasing(CALLER_LINE)] {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let arrival = in_time(server.accept()).await.unwrap();
        assert_eq!(arrival.addr(), stream.local_addr().unwrap());
        let serve = tokio::spawn(async move { arrival.request().await?.answer(&SERVICE, connects).await });
        stalled.push((stream, serve));
    }
    let (mut at_service, at_caller) = leases(&server).await;
    drop(at_caller);
    in_time(at_service.ended()).await;
    for (stream, serve) in stalled {
        assert!(!serve.is_finished(), "it stalls yet");
        drop(stream);
        let served = in_time(serve).await.unwrap();
        assert!(!matches!(served, Err(Error::Timeout { .. })), "{served:?}");
    }
}

#[tokio::test]
async fn a_request_may_be_refused_for_any_reason() {
    let server = server().await;
    let mut client = client(server.local_addr(), Form::Json);
    let serve = async {
        let request = server.accept().await.unwrap().request().await.unwrap();
        assert_eq!(*request.offer(), LEASING_CALLER);
        request.refuse("no queue pair is left".to_owned()).await;
    };
    let (called, ()) = in_time(async { tokio::join!(client.meet(&LEASING_CALLER, connects), serve) }).await;
    assert!(matches!(&called, Err(Error::Refused { reason, .. }) if reason == "no queue pair is left"));
}
