//! Two ends swap what they must know of each other over TCP, in both forms.

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use roce_core::{LocalEndpoint, Qpn, Rkey};
use roce_rendezvous::socket::{Client, Form, Timeouts};
use roce_rendezvous::{Blocking, Offer};

fn offer(qpn: u32) -> Offer {
    let qpn = Qpn::from_low_bits(qpn);
    LocalEndpoint { qpn, rkey: Rkey::new(7), ip: Ipv4Addr::LOCALHOST }.into()
}

fn main() -> Result<(), Box<dyn Error>> {
    for form in [Form::Plain, Form::Json] {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Blocking::bind(any_port, Timeouts::default())?;
        let service = server.get_ref().local_addr();
        let caller = thread::spawn(move || {
            let mut client = Blocking::client(Client::new(service, form))?;
            client.exchange(&offer(2), |_| Ok::<_, Infallible>(()))
        });
        let called = server.exchange(&offer(1), |_| Ok::<_, Infallible>(()))?;
        let answered = caller.join().map_err(|_| "the caller panicked")??;
        assert_eq!(called.endpoint.qpn.get(), 2);
        assert_eq!(answered.endpoint.qpn.get(), 1);
    }
    Ok(())
}
