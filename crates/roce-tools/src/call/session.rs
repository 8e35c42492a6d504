//! A caller's end of a service: rendezvous, transceiver and caller in one.

use std::net::SocketAddr;
use std::time::Duration;

use roce_dispatch::caller::{CallError, Caller, Function};
use roce_rendezvous::Blocking;
use roce_rendezvous::socket::{Client, Form, Timeouts};
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

/// A connection to a service. It ends by itself when dropped, but the service learns so by [`leave`](Self::leave)
/// alone.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    rendezvous: Blocking<Client>,
    caller: Caller<Unified>,
    /// Owns what the caller drives.
    transceiver: Transceiver,
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
        let (transceiver, link) = connect(&config, &mut rendezvous)?;
        let caller = Caller::new(link)?;
        Ok(Self { config, rendezvous, caller, transceiver })
    }

    /// Calls go through here.
    pub fn caller(&self) -> &Caller<Unified> {
        &self.caller
    }

    /// The transceiver, for its counters.
    pub fn transceiver(&self) -> &Transceiver {
        &self.transceiver
    }

    /// Gives up all calls and connects anew, as after the service was started again. Counters and request ids go on.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); the session is as it was.
    pub fn reconnect(&mut self) -> Result<(), Error> {
        let (transceiver, link) = connect(&self.config, &mut self.rendezvous)?;
        self.caller.reconnect(link)?;
        self.transceiver = transceiver;
        Ok(())
    }

    /// Tells the service to free what it has for this caller, and ends. That it could not be told is no error: it then
    /// finds out in its own time.
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

fn connect(
    config: &SessionConfig,
    rendezvous: &mut Blocking<Client>,
) -> Result<(Transceiver, Unified), Error> {
    let transceiver = Transceiver::new(config.transceiver.clone());
    let offer = offer_of(&transceiver)?;
    rendezvous.exchange(&offer, |peer| transceiver.connect(&peer.endpoint))?;
    let link = transceiver.take_unified().ok_or(Error::Taken)?;
    Ok((transceiver, link))
}
