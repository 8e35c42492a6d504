//! RoCEv2 in userspace, over loopback.

use std::net::Ipv4Addr;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use roce_soft::{FaultConfig, SoftConfig, SoftDevice};
use roce_transport::{Config, ConfigBuilder};

use crate::links::{BadWrite, Links, LossyLinks, OverlongSend, Side};

/// Two soft devices on loopback addresses that no other value of this machine has at the same time.
#[derive(Debug)]
pub struct SoftLinks {
    a: Ipv4Addr,
    b: Ipv4Addr,
}

impl SoftLinks {
    /// Takes two addresses of the 254 that each process has.
    #[allow(clippy::new_without_default)] // no two are alike
    pub fn new() -> Self {
        Self { a: unused_addr(), b: unused_addr() }
    }

    fn ip(&self, side: Side) -> Ipv4Addr {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }

    fn open(&self, side: Side, faults: Option<FaultConfig>) -> SoftDevice {
        let config = SoftConfig { addr: self.ip(side), faults, ..SoftConfig::default() };
        SoftDevice::open(config).expect("a loopback address that nobody else has")
    }
}

/// From the process's number, so that test programs running at once share none.
fn unused_addr() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let n = u8::try_from(n).ok().filter(|&n| n < u8::MAX).expect("at most 254 addresses per process");
    let [.., high, low] = (process::id() << 2).to_be_bytes();
    Ipv4Addr::new(127, 192 | (low >> 2), high, n)
}

impl Links for SoftLinks {
    type Device = SoftDevice;

    fn device(&self, side: Side) -> SoftDevice {
        self.open(side, None)
    }

    fn config(&self, side: Side) -> ConfigBuilder {
        Config::builder("soft").local_ip(self.ip(side))
    }

    fn overlong_send(&self) -> OverlongSend {
        OverlongSend::Dropped
    }

    fn bad_write(&self) -> BadWrite {
        BadWrite::Dropped
    }

    fn survives_torn_writes(&self) -> bool {
        true
    }
}

impl LossyLinks for SoftLinks {
    fn lossy_device(&self, side: Side, faults: FaultConfig) -> SoftDevice {
        self.open(side, Some(faults))
    }

    fn lost_counter(&self) -> &'static str {
        "fault_dropped"
    }

    fn sent_counter(&self) -> &'static str {
        "tx_packets"
    }
}
