//! A path between one client and a board that loses and repeats datagrams when told to.

use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::own_ip;

/// Which way a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Request,
    Reply,
}

/// What becomes of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    Lose,
    Repeat,
}

type Fates = Arc<[Mutex<VecDeque<Fate>>; 2]>;

/// Ends its thread when dropped.
pub(crate) struct Relay {
    pub(crate) address: SocketAddrV4,
    fates: Fates,
    lost: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn start(to: SocketAddrV4) -> Self {
        let near = UdpSocket::bind((own_ip(), 0)).unwrap();
        let far = UdpSocket::bind((own_ip(), 0)).unwrap();
        let SocketAddr::V4(address) = near.local_addr().unwrap() else { unreachable!() };
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        }
        let (fates, lost, stop): (Fates, Arc<AtomicU32>, Arc<AtomicBool>) = Default::default();
        let (told, losses, stopped) = (Arc::clone(&fates), Arc::clone(&lost), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut client = None;
            let mut buffer = [0; 4096];
            let times = |way: Way| match told[way as usize].lock().unwrap().pop_front() {
                None | Some(Fate::Pass) => 1,
                Some(Fate::Repeat) => 2,
                Some(Fate::Lose) => {
                    losses.fetch_add(1, Ordering::Relaxed);
                    0
                }
            };
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((len, from)) = near.recv_from(&mut buffer) {
                    client = Some(from);
                    for _ in 0..times(Way::Request) {
                        far.send_to(&buffer[..len], to).unwrap();
                    }
                }
                if let (Ok((len, _)), Some(client)) = (far.recv_from(&mut buffer), client) {
                    for _ in 0..times(Way::Reply) {
                        near.send_to(&buffer[..len], client).unwrap();
                    }
                }
            }
        });
        Self { address, fates, lost, stop, thread: Some(thread) }
    }

    /// What becomes of the next datagrams that way; those after them pass.
    pub(crate) fn next(&self, way: Way, fates: &[Fate]) {
        self.fates[way as usize].lock().unwrap().extend(fates);
    }

    pub(crate) fn lost(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking());
    }
}
