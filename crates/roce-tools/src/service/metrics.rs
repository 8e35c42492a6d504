//! The service's counters as text, in the form that Prometheus reads.

use std::fmt::Write;
use std::time::Duration;

use roce_dispatch::DispatchCounts;
use roce_transport::Stats;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::peer::Peer;

/// For a whole question and its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest question that is read, in bytes.
const MAX_QUESTION: usize = 4096;

/// What the service has counted, beside what its callers' threads count.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Callers that were served.
    pub(super) peers: u64,
    /// Exchanges that failed.
    pub(super) rendezvous_errors: u64,
    /// Of callers that are gone.
    past: Counts,
}

/// Counters of callers, added up, by name.
#[derive(Debug, Default, Clone)]
struct Counts {
    dispatch: Vec<(&'static str, u64)>,
    transport: Vec<(&'static str, u64)>,
}

impl Counts {
    fn add(&mut self, (dispatch, transport): &(DispatchCounts, Stats)) {
        add_up(&mut self.dispatch, &dispatch.fields());
        add_up(&mut self.transport, &transport.fields());
    }
}

fn add_up(sums: &mut Vec<(&'static str, u64)>, more: &[(&'static str, u64)]) {
    for &(name, value) in more {
        match sums.iter_mut().find(|(n, _)| *n == name) {
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        }
    }
}

impl Totals {
    /// Keeps what a caller's threads counted, now that it is gone.
    pub(super) fn add(&mut self, counts: (DispatchCounts, Stats)) {
        self.past.add(&counts);
    }

    /// Requests of callers that are gone which were answered.
    pub(super) fn answered(&self) -> u64 {
        self.past.dispatch.iter().find(|(name, _)| *name == "responses").map_or(0, |(_, count)| *count)
    }

    /// All counters now, those of the callers there are included.
    pub(super) fn render(&self, peers: &[Peer]) -> String {
        let mut sums = self.past.clone();
        let mut each = String::new();
        // The names are there from the start, at 0.
        sums.add(&(DispatchCounts::default(), Stats::default()));
        for peer in peers {
            let counts = peer.counts();
            sums.add(&counts);
            // Its successor may have the same name.
            if peer.is_stopped() {
                continue;
            }
            // Writing to a string does not fail.
            let _ = writeln!(
                each,
                "roce_service_peer_requests_total{{peer=\"{}\"}} {}",
                peer.name(),
                counts.0.requests
            );
        }
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, samples: &str| {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        };
        let one = |name: &str, value: u64| format!("{name} {value}\n");
        let by = |name: &str, label: &str, values: &[(&str, u64)]| -> String {
            values.iter().map(|(key, value)| format!("{name}{{{label}=\"{key}\"}} {value}\n")).collect()
        };
        let serving = one("roce_service_peers", peers.len() as u64);
        metric("roce_service_peers", "gauge", "Callers that are served now.", &serving);
        let met = one("roce_service_peers_total", self.peers);
        metric("roce_service_peers_total", "counter", "Callers that were served.", &met);
        let failed = one("roce_service_rendezvous_errors_total", self.rendezvous_errors);
        metric("roce_service_rendezvous_errors_total", "counter", "Exchanges that failed.", &failed);
        let name = "roce_service_dispatch_total";
        metric(name, "counter", "What became of the messages.", &by(name, "event", &sums.dispatch));
        let name = "roce_service_transport_total";
        metric(name, "counter", "What the transceivers did.", &by(name, "event", &sums.transport));
        let name = "roce_service_peer_requests_total";
        metric(name, "counter", "Requests of each caller that is served now.", &each);
        text
    }
}

/// Answers one question over HTTP with `metrics`. Who asks too slowly, or for something else, gets none.
pub(super) async fn respond(mut stream: TcpStream, metrics: String) {
    let talk = async {
        let question = read_question(&mut stream).await?;
        let path = question.strip_prefix("GET ").and_then(|rest| rest.split([' ', '?']).next());
        let (status, body) = match path {
            Some("/metrics" | "/") => ("200 OK", metrics),
            Some(_) => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
            None => ("405 Method Not Allowed", "GET only\n".to_owned()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await
    };
    // Whoever asked is gone, or too slow; there is nobody to tell.
    let _ = timeout(PATIENCE, talk).await;
}

/// The head of a request, or as much of it as there is.
async fn read_question(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut question = Vec::new();
    let mut piece = [0; 512];
    while question.len() < MAX_QUESTION && !question.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => break,
            n => question.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&question).into_owned())
}
