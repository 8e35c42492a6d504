//! Counters of a queue pair, and those that the kernel keeps for its port.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use roce_core::{Counter, WireStats};

use crate::error::Place;
use crate::events::OtherEvents;

/// Written by the sending half.
#[derive(Debug, Default)]
pub(crate) struct TxCounters {
    pub(crate) posted: Counter,
    pub(crate) signalled: Counter,
    pub(crate) completed: Counter,
}

/// Written by the receiving half.
#[derive(Debug, Default)]
pub(crate) struct RxCounters {
    pub(crate) posted: Counter,
    pub(crate) completed: Counter,
}

/// The counters of a queue pair, and those that the kernel keeps for its port: all traffic of the port, from
/// whichever program.
///
/// `device_events` are the asynchronous events that this transceiver's opening of the device got and that end no queue
/// pair, as when the port's addresses change; `device_last_event` is the `ibv_event_type` of the last one.
#[derive(Debug)]
pub struct VerbsStats {
    pub(crate) tx: CachePadded<TxCounters>,
    pub(crate) rx: CachePadded<RxCounters>,
    events: Arc<OtherEvents>,
    files: Vec<(&'static str, PathBuf)>,
}

impl VerbsStats {
    pub(crate) fn new(at: &Place, events: &Arc<OtherEvents>) -> Self {
        Self::under(Path::new("/sys/class/infiniband"), at, events)
    }

    fn under(root: &Path, at: &Place, events: &Arc<OtherEvents>) -> Self {
        let port = root.join(&at.device).join("ports").join(at.port.to_string());
        let mut files = files_of(&port.join("hw_counters"));
        files.extend(files_of(&port.join("counters")));
        let events = Arc::clone(events);
        Self { tx: CachePadded::default(), rx: CachePadded::default(), events, files }
    }
}

impl WireStats for VerbsStats {
    fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let (tx, rx) = (&self.tx, &self.rx);
        let (events, last_event) = self.events.get();
        let own = [
            ("tx_posted", tx.posted.get()),
            ("tx_signalled", tx.signalled.get()),
            ("tx_completed", tx.completed.get()),
            ("rx_posted", rx.posted.get()),
            ("rx_completed", rx.completed.get()),
            ("device_events", events),
            ("device_last_event", last_event),
        ];
        let of_port = self.files.iter().filter_map(|(name, path)| Some((*name, read(path)?)));
        own.into_iter().chain(of_port).collect()
    }
}

/// The counters in a directory, by name; none where the device has no such directory.
fn files_of(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            read(&path)?;
            let name = path.file_name()?.to_str().filter(|name| *name != "lifespan")?; // a setting, not a counter
            Some((intern(name), path))
        })
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The name for as long as the program runs. There are as many as the kernel's drivers have counters.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name) {
        return known;
    }
    let name: &'static str = name.to_owned().leak();
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_s_counters_join_our_own() {
        let root = tempfile::tempdir().expect("a directory");
        let port = root.path().join("rxe7/ports/2");
        for (file, text) in [
            ("hw_counters/sent_pkts", "17\n"),
            ("hw_counters/lifespan", "10\n"),
            ("counters/port_rcv_data", "4\n"),
            ("counters/odd", "N/A (no PMA)\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().expect("in a directory")).expect("created");
            fs::write(path, text).expect("written");
        }
        let stats =
            VerbsStats::under(root.path(), &Place { device: "rxe7".to_owned(), port: 2 }, &Arc::default());
        stats.tx.posted.set(3);
        stats.rx.completed.add(2);
        fs::write(port.join("hw_counters/sent_pkts"), "18\n").expect("written");
        assert_eq!(
            stats.snapshot(),
            [
                ("tx_posted", 3),
                ("tx_signalled", 0),
                ("tx_completed", 0),
                ("rx_posted", 0),
                ("rx_completed", 2),
                ("device_events", 0),
                ("device_last_event", 0),
                ("sent_pkts", 18),
                ("port_rcv_data", 4),
            ]
        );
    }

    #[test]
    fn a_device_without_counters_has_our_own() {
        let stats = VerbsStats::under(
            Path::new("/nowhere"),
            &Place { device: "x".to_owned(), port: 1 },
            &Arc::default(),
        );
        assert_eq!(stats.snapshot().len(), 7);
    }

    #[test]
    fn names_are_kept_once() {
        assert!(std::ptr::eq(intern("some_counter"), intern("some_counter")));
    }
}
