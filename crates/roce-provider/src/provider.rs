//! The object behind a handle: a transceiver, and the rendezvous that finds its peer.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use roce_core::LocalEndpoint;
use roce_ffi::report;
use roce_rendezvous::socket::{Server, Timeouts};
use roce_rendezvous::{
    Blocking, Error as RendezvousError, Geometry as OfferGeometry, Offer, TxMode as OfferTxMode,
};
use roce_ring::{Geometry, Ring};
use roce_transport::{Transceiver, Unified};

use crate::abi::RingDescriptor;
use crate::error::Refusal;
use crate::options::{Options, Peer};

/// From one look at whether a connect is to end to the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A transceiver that is set up.
pub(crate) struct Provider {
    transceiver: Arc<Transceiver>,
    endpoint: LocalEndpoint,
    /// Mapped as long as the handle lives, for C code keeps pointers into them.
    rx: Arc<Ring>,
    tx: Arc<Ring>,
    is_unified: bool,
    /// Not with an FPGA.
    rendezvous: Option<Mutex<Blocking<Server>>>,
    port: u16,
    is_connected: AtomicBool,
    is_closed: AtomicBool,
    monitor: Mutex<Option<JoinHandle<()>>>,
    /// What the polling thread's calls were refused with last.
    complaint: Mutex<String>,
}

impl Provider {
    pub(crate) fn new(options: &Options) -> Result<Self, Refusal> {
        let transceiver = Arc::new(Transceiver::new(options.config()?));
        let endpoint = transceiver.setup()?;
        let rings = transceiver.rx_ring().zip(transceiver.tx_ring());
        let (rx, tx) = rings.ok_or(Refusal::Closed)?;
        let mut provider = Self {
            transceiver,
            endpoint,
            rx,
            tx,
            is_unified: options.unified,
            rendezvous: None,
            port: 0,
            is_connected: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            monitor: Mutex::default(),
            complaint: Mutex::default(),
        };
        match options.peer {
            Peer::Rendezvous { port } => provider.listen(port)?,
            Peer::Fpga(fpga) => {
                provider.transceiver.connect(&fpga)?;
                provider.is_connected = AtomicBool::new(true);
                provider.announce();
            }
        }
        Ok(provider)
    }

    /// Callers may come to any address of ours: the network that they call on need not be the RoCE one.
    fn listen(&mut self, port: u16) -> Result<(), Refusal> {
        let timeouts = Timeouts { peer: Some(LOOK_EVERY), ..Timeouts::default() };
        let addr = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let server = Blocking::<Server>::bind(addr, timeouts)?;
        self.port = server.get_ref().local_addr().port();
        self.rendezvous = Some(Mutex::new(server));
        Ok(())
    }

    /// The lines from which scripts learn what to tell the FPGA.
    fn announce(&self) {
        let LocalEndpoint { qpn, rkey, .. } = self.endpoint;
        let lines =
            format!("=== Bridge Ready ===\n  QP Number: {qpn}\n  RKey: {}\n  Buffer Addr: 0x0\n", rkey.get());
        let mut stdout = io::stdout().lock();
        // It has nowhere to say that it could not.
        let _ = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush());
    }

    pub(crate) fn is_unified(&self) -> bool {
        self.is_unified
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.rx.geometry()
    }

    pub(crate) fn info(&self) -> String {
        let LocalEndpoint { qpn, rkey, ip } = self.endpoint;
        format!("transport=cpu_roce port={} roce_ip={ip} qp={qpn} rkey={}", self.port, rkey.get())
    }

    pub(crate) fn rings(&self) -> RingDescriptor {
        let stride = self.geometry().page_size() as usize;
        let (rx_flags, tx_flags) = (self.rx.flag_addr(), self.tx.flag_addr());
        let (rx_data, tx_data) = (self.rx.data_addr(), self.tx.data_addr());
        RingDescriptor {
            rx_flags,
            tx_flags,
            rx_data,
            tx_data,
            rx_stride: stride,
            tx_stride: stride,
            rx_flags_host: rx_flags,
            tx_flags_host: tx_flags,
            rx_data_host: rx_data,
            tx_data_host: tx_data,
        }
    }

    /// Waits for the peer. Callers that fail are reported, and the next one is waited for.
    pub(crate) fn connect(&self) -> Result<(), Refusal> {
        let Some(rendezvous) = &self.rendezvous else { return self.check_open() };
        let mut server = lock(rendezvous);
        while !self.is_connected() {
            self.check_open()?;
            match server.exchange(&self.offer(), |peer| self.transceiver.connect(&peer.endpoint)) {
                Ok(_) => self.is_connected.store(true, Ordering::Release), // pairs with `is_connected`
                Err(RendezvousError::NoCaller { .. }) => {}
                Err(why) => report("cudaq-realtime-bridge-cpu-roce: connect", why),
            }
        }
        self.check_open()
    }

    fn offer(&self) -> Offer {
        let (shape, offer) = (self.geometry(), Offer::from(self.endpoint));
        let Some(mtu) = self.transceiver.path_mtu() else { return offer };
        offer.with_geometry(OfferGeometry {
            slots: shape.num_pages(),
            slot_size: shape.page_size(),
            frame_size: shape.frame_size(),
            mtu,
            tx_mode: OfferTxMode::Send,
        })
    }

    /// Starts the monitor thread; the unified shape has none. Launched already: nothing to do.
    pub(crate) fn launch(&self) -> Result<(), Refusal> {
        let mut monitor = lock(&self.monitor);
        self.check_open()?;
        if !self.is_connected() {
            return Err(Refusal::NotConnected);
        }
        if self.is_unified || monitor.is_some() {
            return Ok(());
        }
        let transceiver = Arc::clone(&self.transceiver);
        let body = move || {
            if let Err(why) = transceiver.blocking_monitor() {
                report("cudaq-realtime-bridge-cpu-roce: monitor", why);
            }
        };
        let thread = thread::Builder::new().name("roce-monitor".to_owned()).spawn(body);
        *monitor = Some(thread.map_err(Refusal::Thread)?);
        Ok(())
    }

    /// The end for the thread that polls; once, when connected.
    pub(crate) fn take_unified(&self) -> Option<Unified> {
        if self.is_connected() { self.transceiver.take_unified() } else { None }
    }

    /// A thread may poll without end: each failure is news once. To be closed is none.
    pub(crate) fn is_first_complaint(&self, why: &roce_transport::Error) -> bool {
        let text = why.to_string();
        let mut last = lock(&self.complaint);
        let is_news = !matches!(why, roce_transport::Error::Closed) && *last != text;
        *last = text;
        is_news
    }

    /// Ends the connection and joins. A connect that waits returns.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release); // pairs with `check_open`
        self.transceiver.close();
        let monitor = lock(&self.monitor).take();
        if let Some(thread) = monitor {
            // What it failed with is reported already.
            let _ = thread.join();
        }
        if let Some(rendezvous) = &self.rendezvous {
            drop(lock(rendezvous));
        }
    }

    fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }

    fn check_open(&self) -> Result<(), Refusal> {
        if self.is_closed.load(Ordering::Acquire) { Err(Refusal::Closed) } else { Ok(()) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
