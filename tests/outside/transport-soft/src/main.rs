//! One message over RoCEv2 between two transceivers, without threads of their own.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use roce_core::{LocalEndpoint, PeerEndpoint};
use roce_transport::{Config, Mode, Transceiver};

fn transceiver(side: u8) -> Result<Transceiver, Box<dyn Error>> {
    // An address of this process's own.
    let [_, a, b, c] = std::process::id().to_be_bytes();
    let device = format!("soft:127.{}.{b}.{c}", 0x80 | side << 4 | a & 0xF);
    let config = Config::builder(device).num_pages(4).page_size(64).mode(Mode::Unified).build()?;
    Ok(Transceiver::new(config))
}

fn peer(end: LocalEndpoint) -> PeerEndpoint {
    PeerEndpoint { qpn: end.qpn, rkey: Some(end.rkey), ip: end.ip }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (left, right) = (transceiver(1)?, transceiver(2)?);
    let (left_end, right_end) = (left.setup()?, right.setup()?);
    left.connect(&peer(right_end))?;
    right.connect(&peer(left_end))?;
    let mut sender = left.take_unified().ok_or("connected in unified mode")?;
    let mut receiver = right.take_unified().ok_or("connected in unified mode")?;
    sender.tx_slot(0).copy_from(0, b"syndrome");
    sender.tx_publish(0)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    let slot = loop {
        if let Some(slot) = receiver.rx_poll()? {
            break slot;
        }
        assert!(Instant::now() < deadline, "nothing arrived: {:?}", right.stats());
    };
    assert_eq!(receiver.rx_slot(slot).read::<8>(0), *b"syndrome");
    Ok(())
}
