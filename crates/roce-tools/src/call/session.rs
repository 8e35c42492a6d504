//! A caller's end of a service: rendezvous, transceiver and caller in one.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use roce_dispatch::caller::{CallError, Caller, Function};
use roce_rendezvous::Blocking;
use roce_rendezvous::socket::{Client, Form, Lease, LeaseEnd, Timeouts, Watch};
use roce_transport::{Config, Transceiver, Unified};

use crate::Error;
use crate::service::{LEAVE, offer_of};

/// How long a caller that goes waits for the service to know.
const FAREWELL: Duration = Duration::from_millis(200);

/// What a session needs to know.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Where the service's rendezvous listens.
    pub service: SocketAddr,
    /// Which form of it to speak.
    pub form: Form,
    /// For the service to turn up.
    pub timeout: Duration,
    /// The transceiver, in unified mode. Slots and their size as the service's.
    pub transceiver: Config,
}

/// A connection to a service. It ends by itself when dropped; [`leave`](Self::leave) waits until the service has seen
/// to all calls before.
///
/// Where the service leases, as `roce-service` does in the JSON form, each side learns at once that the other is gone:
/// once the service has ended, or let this caller go, all calls end with [`CallError::Closed`], until
/// [`reconnect`](Self::reconnect). Without a lease they time out.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    rendezvous: Blocking<Client>,
    caller: Caller<Unified>,
    connection: Connection,
}

impl Session {
    /// Finds the service and connects to it.
    ///
    /// # Errors
    /// The transceiver's, and those of the rendezvous.
    pub fn connect(config: SessionConfig) -> Result<Self, Error> {
        let timeouts = Timeouts { peer: Some(config.timeout), ..Timeouts::default() };
        let client = Client::new(config.service, config.form).with_timeouts(timeouts);
        let mut rendezvous = Blocking::<Client>::client(client)?;
        let (connection, link) = Connection::open(&config, &mut rendezvous)?;
        let caller = Caller::new(link)?;
        Ok(Self { config, rendezvous, caller, connection })
    }

    /// Calls go through here.
    pub fn caller(&self) -> &Caller<Unified> {
        &self.caller
    }

    /// The transceiver, for its counters.
    pub fn transceiver(&self) -> &Transceiver {
        &self.connection.transceiver
    }

    /// How it was noticed that the service ended or let this caller go, if it was.
    pub fn service_end(&self) -> Option<&LeaseEnd> {
        self.connection.end.get()
    }

    /// The same error, or [`Error::ServiceGone`] where a closed link comes of that.
    pub fn explain(&self, error: Error) -> Error {
        match (&error, self.service_end()) {
            (Error::Call(CallError::Closed), Some(end)) => {
                Error::ServiceGone { service: self.config.service, why: end.to_string() }
            }
            _ => error,
        }
    }

    /// Gives up all calls and connects anew, as after the service was started again. Counters and request ids go on.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); the session is as it was.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let (connection, link) = Connection::open(&self.config, &mut self.rendezvous)?;
        self.caller.reconnect(link)?;
        self.connection = connection;
        Ok(())
    }

    /// Has the service see to all calls before, and free what it has for this caller; and ends. It waits 200 ms at most,
    /// and not at all while every slot holds a call. That the service could not be told is no error: it then finds out
    /// by the lease, or in its own time.
    pub fn leave(self) {
        const GOES: Function<'_> = Function::new(LEAVE);
        let told = self.caller.acquire(&GOES).and_then(|frame| frame.dispatch(FAREWELL)).and_then(|call| {
            call.wait()?;
            Ok::<(), CallError>(())
        });
        if let Err(error) = told {
            tracing::debug!("the service may not know that its caller left: {error}");
        }
    }
}

/// What a caller's link rests on.
#[derive(Debug)]
struct Connection {
    /// Owns what the caller drives.
    transceiver: Arc<Transceiver>,
    end: Arc<OnceLock<LeaseEnd>>,
    /// Last: once it is dropped the service frees what it has for this caller.
    _lease: Option<Watch>,
}

impl Connection {
    fn open(config: &SessionConfig, rendezvous: &mut Blocking<Client>) -> Result<(Self, Unified), Error> {
        let transceiver = Arc::new(Transceiver::new(config.transceiver.clone()));
        let offer = offer_of(&transceiver)?;
        let (_, lease) = rendezvous.meet(&offer, |peer| transceiver.connect(&peer.endpoint))?;
        let link = transceiver.take_unified().ok_or(Error::Taken)?;
        let end = Arc::default();
        let lease = lease.map(|lease| watch(lease, &transceiver, &end)).transpose()?;
        Ok((Self { transceiver, end, _lease: lease }, link))
    }
}

/// Closes the transceiver when the lease ends: the caller looks at that anyway, so the lease costs a call nothing.
fn watch(
    lease: Lease,
    transceiver: &Arc<Transceiver>,
    end: &Arc<OnceLock<LeaseEnd>>,
) -> Result<Watch, roce_rendezvous::Error> {
    let (transceiver, end) = (Arc::clone(transceiver), Arc::clone(end));
    lease.watch(move |ended| {
        let _ = end.set(ended);
        transceiver.close();
    })
}
