//! The object behind a handle: a transceiver, before and after it exists.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use roce_core::{Device, LocalEndpoint};
use roce_ffi::{Handles, report};
use roce_ring::{Geometry, Ring};
use roce_transport::{Config, ConfigBuilder, Mode, Monitor, SharedPoller, State, Stats, Transceiver};

use crate::dispatch::{Callback, Server, Serving};
use crate::engine::Engine;
use crate::error::Refusal;
use crate::port::{AnyPort, Entries};
use crate::settings::{Peer, Settings};

/// `cpu_roce_transceiver_t`: never dereferenced.
pub type Handle = *mut c_void;

/// All transceivers of the process.
pub(crate) static TRANSCEIVERS: Handles<Instance, AnyPort, Entries> = Handles::new(0xC0DE);

type MakeEngine = Box<dyn Fn(Config) -> Arc<dyn Engine> + Send + Sync>;

/// Makes a transceiver on a link of your own, which `open` opens at set-up; NULL where the configuration cannot
/// be. For programs in Rust that test or measure what lies above the link.
pub fn create_on<D: Device + 'static>(
    config: ConfigBuilder,
    open: impl Fn(&Config) -> Result<D, D::Error> + Clone + Send + Sync + 'static,
) -> Handle {
    let make = move |config| Arc::new(Transceiver::with_device(config, open.clone())) as Arc<dyn Engine>;
    let instance = Settings::new(config).and_then(|settings| Instance::new(settings, Box::new(make)));
    instance.ok().and_then(|instance| TRANSCEIVERS.insert(instance)).unwrap_or(std::ptr::null_mut())
}

/// A transceiver as C sees it.
pub(crate) struct Instance {
    make_engine: MakeEngine,
    geometry: Geometry,
    mode: Mode,
    /// Held throughout a set-up.
    settings: Mutex<Settings>,
    callback: Mutex<Option<Callback>>,
    up: OnceLock<Up>,
    is_connected: AtomicBool,
    is_closed: AtomicBool,
    /// The callback's loop has the port.
    is_dispatching: AtomicBool,
    monitors: Monitors,
    /// Tells of its end under a poller.
    polled: OnceLock<Monitor>,
    last_error: Mutex<String>,
    /// What a polling thread was told last, so that it is told once.
    last_told: Mutex<String>,
}

/// What a set-up makes. The rings stay mapped as long as the handle lives, for C code keeps pointers into them.
pub(crate) struct Up {
    engine: Arc<dyn Engine>,
    pub(crate) endpoint: LocalEndpoint,
    pub(crate) rx: Arc<Ring>,
    pub(crate) tx: Arc<Ring>,
}

impl Up {
    /// Whether there is a port now.
    fn attach_port(&self, handle: Handle) -> bool {
        TRANSCEIVERS.attach(handle, || {
            let port = self.engine.take_port(handle)?;
            let entries = port.entries();
            Some((port, entries))
        })
    }
}

impl Instance {
    /// On the link that the device's name chooses.
    pub(crate) fn by_name(settings: Settings) -> Result<Self, Refusal> {
        Self::new(settings, Box::new(|config| Arc::new(Transceiver::new(config))))
    }

    fn new(settings: Settings, make_engine: MakeEngine) -> Result<Self, Refusal> {
        let config = settings.build()?;
        Ok(Self {
            make_engine,
            geometry: config.geometry(),
            mode: config.mode(),
            settings: Mutex::new(settings),
            callback: Mutex::default(),
            up: OnceLock::new(),
            is_connected: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_dispatching: AtomicBool::new(false),
            monitors: Monitors::default(),
            polled: OnceLock::new(),
            last_error: Mutex::default(),
            last_told: Mutex::default(),
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What there is between set-up and close.
    pub(crate) fn up(&self) -> Option<&Up> {
        if self.is_closed() { None } else { self.up.get() }
    }

    /// Changes the settings, before the set-up.
    pub(crate) fn change<R>(
        &self,
        change: impl FnOnce(&mut Settings) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let mut settings = lock(&self.settings);
        self.check_open()?;
        if self.up.get().is_some() {
            return Err(Refusal::SetUp);
        }
        change(&mut settings)
    }

    pub(crate) fn set_callback(&self, callback: Option<Callback>) -> Result<(), Refusal> {
        self.check_unified()?;
        if self.is_dispatching.load(Ordering::Acquire) {
            return Err(Refusal::Monitored);
        }
        *lock(&self.callback) = callback;
        Ok(())
    }

    pub(crate) fn setup(&self) -> Result<&Up, Refusal> {
        let settings = lock(&self.settings);
        self.check_open()?;
        if let Some(up) = self.up.get() {
            return Ok(up);
        }
        let engine = (self.make_engine)(settings.build()?);
        let endpoint = engine.setup()?;
        let (rx, tx) = engine.rings().ok_or(Refusal::Closed)?;
        Ok(self.up.get_or_init(|| Up { engine, endpoint, rx, tx }))
    }

    pub(crate) fn connect(&self, peer: impl FnOnce() -> Result<Peer, Refusal>) -> Result<(), Refusal> {
        self.check_open()?;
        let up = self.up().ok_or(Refusal::NotSetUp)?;
        if self.is_connected() {
            return up.engine.error().map_or(Ok(()), |e| Err(e.into()));
        }
        up.engine.connect(&peer()?.endpoint()?)?;
        self.is_connected.store(true, Ordering::Release); // pairs with `is_connected`
        Ok(())
    }

    /// Set-up, and connect to the peer of the creation.
    pub(crate) fn start(&self) -> Result<(), Refusal> {
        self.check_open()?;
        let peer = || lock(&self.settings).peer().ok_or(Refusal::NoPeer);
        if !self.is_connected() {
            peer()?.endpoint()?;
            self.setup()?;
        }
        self.connect(peer)
    }

    /// Returns once closed or failed, or at once where there is nothing to run.
    pub(crate) fn monitor(self: &Arc<Self>, handle: Handle) -> Result<(), Refusal> {
        let _count = self.monitors.begin();
        self.check_open()?;
        let up = self.connected()?;
        if self.mode == Mode::Unified {
            return self.dispatch(handle, up);
        }
        match self.polled.get() {
            Some(polled) => Ok(polled.wait()?),
            None => Ok(up.engine.blocking_monitor()?),
        }
    }

    /// Has the poller move the messages.
    pub(crate) fn join(&self, poller: &SharedPoller) -> Result<(), Refusal> {
        self.check_open()?;
        if self.mode == Mode::Unified {
            return Err(Refusal::Unified);
        }
        let polled = self.connected()?.engine.join(poller)?;
        // It is the first: a transceiver is given away once.
        let _ = self.polled.set(polled);
        Ok(())
    }

    fn dispatch(self: &Arc<Self>, handle: Handle, up: &Up) -> Result<(), Refusal> {
        let callback = lock(&self.callback).ok_or(Refusal::NoCallback)?;
        let _running = Running::begin(&self.is_dispatching).ok_or(Refusal::Monitored)?;
        // A thread that polled before may have the port.
        up.attach_port(handle);
        let port = TRANSCEIVERS.detach(handle).ok_or_else(|| self.gone(up))?;
        let _serving = Serving::begin(self);
        let complain = |why| self.tell_once("cpu_roce_blocking_monitor", why);
        Ok(Server { port, rx: &up.rx, tx: &up.tx, callback, complain }.run()?)
    }

    /// Makes the port ready for the thread that polls.
    pub(crate) fn attach_port(&self, handle: Handle) -> Result<(), Refusal> {
        self.check_unified()?;
        self.check_open()?;
        let up = self.connected()?;
        if self.is_dispatching.load(Ordering::Acquire) {
            return Err(Refusal::Monitored);
        }
        if up.attach_port(handle) { Ok(()) } else { Err(self.gone(up)) }
    }

    /// From any thread. Returns when all has ended, unless a callback calls it.
    pub(crate) fn close(self: &Arc<Self>, handle: Handle) {
        self.is_closed.store(true, Ordering::Release); // pairs with `is_closed`
        // A set-up that runs now ends first; none begins after it.
        drop(lock(&self.settings));
        if let Some(up) = self.up.get() {
            up.engine.close();
        }
        drop(TRANSCEIVERS.detach(handle));
        if !self.is_served_here() {
            self.monitors.wait_for_none();
        }
    }

    /// Whether this thread is in the callback.
    pub(crate) fn is_served_here(self: &Arc<Self>) -> bool {
        Serving::is(Arc::as_ptr(self).cast())
    }

    pub(crate) fn state(&self) -> State {
        if self.is_closed() {
            return State::Closed;
        }
        self.up().map_or(State::Created, |up| up.engine.state())
    }

    pub(crate) fn stats(&self) -> Stats {
        self.up.get().map(|up| up.engine.stats()).unwrap_or_default()
    }

    pub(crate) fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }

    /// Keeps a refusal, and reports it.
    pub(crate) fn tell(&self, call: &str, why: &Refusal) {
        let text = why.to_string();
        report(call, &text);
        *lock(&self.last_error) = text;
    }

    /// As [`tell`](Self::tell), for a call that a thread may repeat without end: the same refusal is reported once.
    pub(crate) fn tell_once(&self, call: &str, why: Refusal) {
        let text = why.to_string();
        let mut told = lock(&self.last_told);
        if *told != text {
            report(call, &text);
            told.clone_from(&text);
        }
        *lock(&self.last_error) = text;
    }

    /// Why a connected transceiver has no port to give.
    fn gone(&self, up: &Up) -> Refusal {
        up.engine.error().map_or(Refusal::Closed, Refusal::from)
    }

    fn connected(&self) -> Result<&Up, Refusal> {
        let up = self.up().ok_or(Refusal::NotSetUp)?;
        if self.is_connected() { Ok(up) } else { Err(Refusal::NotConnected) }
    }

    fn check_open(&self) -> Result<(), Refusal> {
        if self.is_closed() { Err(Refusal::Closed) } else { Ok(()) }
    }

    fn check_unified(&self) -> Result<(), Refusal> {
        if self.mode == Mode::Unified { Ok(()) } else { Err(Refusal::NotUnified(self.mode)) }
    }

    fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Acquire)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls of `blocking_monitor` that have not returned.
#[derive(Default)]
struct Monitors {
    count: Mutex<u32>,
    ended: Condvar,
}

struct Monitoring<'a>(&'a Monitors);

impl Monitors {
    fn begin(&self) -> Monitoring<'_> {
        *lock(&self.count) += 1;
        Monitoring(self)
    }

    fn wait_for_none(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.ended.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Monitoring<'_> {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.ended.notify_all();
    }
}

/// A flag that is set while this lives.
struct Running<'a>(&'a AtomicBool);

impl<'a> Running<'a> {
    /// `None` if it is set already.
    fn begin(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::AcqRel)).then(|| Self(flag)) // made only then: its drop clears the flag
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
