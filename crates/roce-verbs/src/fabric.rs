//! An RDMA port as a maker of queue pairs.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use roce_core::{
    ConnectError, Device, DmaRegion, Gid, Mtu, PeerEndpoint, PostError, Psn, QpAttr, Qpn, RecvWr, Rkey, UcQp,
    UcRecv, WireStats,
};

use crate::context::Context;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::events::Fault;
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{Depths, Init, Qp, Resources, Route, Rtr, Rts};
use crate::recv::VerbsRecv;
use crate::send::VerbsSend;
use crate::staging::StagingMemory;
use crate::stats::VerbsStats;

/// Bytes up to which messages are posted inline, where the device can and nothing else is asked for.
const DEFAULT_INLINE: u32 = 256;

/// Which port, and how to use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsConfig {
    /// The device's name, as `rdma link` shows it.
    pub device: String,
    /// The port, from 1.
    pub port: u8,
    /// Our address. `None` takes the first IPv4 address that the port's GID table has for RoCEv2.
    pub local_ip: Option<Ipv4Addr>,
    /// Bytes up to which messages are posted inline; `None` asks for 256. A device that can do less does less.
    pub max_inline: Option<u32>,
}

impl VerbsConfig {
    /// Port 1 of that device, its first IPv4 address.
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), port: 1, local_ip: None, max_inline: None }
    }
}

/// A port of an RDMA device.
///
/// The regions of its queue pairs must begin on the boundary of a page. Each queue pair also has as many bytes as its
/// TX region, a little more where they do not divide into cache lines, for copies of what it sends: they count as
/// locked memory too.
#[derive(Debug)]
pub struct VerbsDevice {
    context: Arc<Context>,
    config: VerbsConfig,
}

impl VerbsDevice {
    /// Opens the device and checks that its port can carry RoCEv2 now, from the address asked for.
    ///
    /// # Errors
    ///
    /// No libibverbs, no such device or port, the port is down or not of Ethernet, or it has no RoCEv2 GID for
    /// the address.
    pub fn open(config: VerbsConfig) -> Result<Self, VerbsError> {
        let context = Arc::new(Context::open(&config.device)?);
        context.active_port(config.port)?;
        local_gid(&context, config.port, config.local_ip)?;
        Ok(Self { context, config })
    }

    /// What the port carries now, or the path MTU asked for where it carries that.
    fn path_mtu(&self, asked: Option<Mtu>) -> Result<Mtu, VerbsError> {
        let active = self.context.active_port(self.config.port)?.active_mtu;
        match asked {
            Some(asked) if asked > active => {
                Err(VerbsError::PathMtu { at: self.context.at(self.config.port), asked, active })
            }
            asked => Ok(asked.unwrap_or(active)),
        }
    }

    fn resources(&self, attr: &QpAttr, depths: Depths) -> Result<Resources, VerbsError> {
        let pd = Pd::alloc(&self.context)?;
        let rx = Mr::register_rx(&pd, &attr.rx)?;
        let tx = Mr::register_tx(&pd, &attr.tx)?;
        let fault = Arc::new(Fault::default());
        let send_cq = Cq::create(&self.context, depths.send, &fault)?;
        let recv_cq = Cq::create(&self.context, depths.recv, &fault)?;
        let staging = Mr::register_staging(&pd, &staging_memory(attr.tx.len(), depths.send)?)?;
        Ok(Resources { rx, tx, staging, send_cq, recv_cq, pd, fault })
    }

    fn say_inline(&self, asked: u32, given: u32) {
        let device = self.context.name();
        if given < asked && is_news(device, asked) {
            tracing::warn!(
                device,
                asked,
                given,
                "the device posts shorter messages inline than asked for; longer ones cost it another read"
            );
        }
    }
}

/// Whether it was not said before of this device, which a process opens once for each transceiver on it.
fn is_news(device: &str, asked: u32) -> bool {
    static SAID: Mutex<BTreeSet<(String, u32)>> = Mutex::new(BTreeSet::new());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).insert((device.to_owned(), asked))
}

fn staging_memory(tx_len: usize, depth: u32) -> Result<Arc<dyn DmaRegion>, VerbsError> {
    match StagingMemory::for_region(tx_len, depth) {
        Ok(memory) => Ok(Arc::new(memory)),
        Err(source) => Err(VerbsError::Staging { tx_len, send_depth: depth, source }),
    }
}

impl Device for VerbsDevice {
    type Qp = VerbsQp;
    type Error = VerbsError;

    fn create_qp(&self, attr: &QpAttr) -> Result<VerbsQp, VerbsError> {
        let port = self.config.port;
        let mtu = self.path_mtu(attr.mtu)?;
        let local = local_gid(&self.context, port, self.config.local_ip)?;
        let depths = Depths {
            send: attr.send_depth.max(1),
            recv: attr.recv_depth.max(1),
            inline: self.config.max_inline.unwrap_or(DEFAULT_INLINE),
        };
        let (qp, inline) = Qp::create(self.resources(attr, depths)?, port, depths)?;
        self.say_inline(depths.inline, inline);
        let qp = qp.init().map_err(|refused| refused.1)?;
        let stats = Arc::new(VerbsStats::new(&self.context.at(port), self.context.other_events()));
        let recv = VerbsRecv::new(qp.handle(), depths.recv, &stats);
        let depths = Depths { inline, ..depths };
        Ok(VerbsQp {
            qp,
            recv,
            posted: Vec::new(),
            local_ip: local.ip,
            mtu,
            first_psn: Psn::default(),
            depths,
            stats,
        })
    }
}

/// Our GID: its place in the port's table now, and the address in it.
#[derive(Debug, Clone, Copy)]
struct LocalGid {
    index: u8,
    gid: Gid,
    ip: Ipv4Addr,
}

fn local_gid(context: &Context, port: u8, wanted: Option<Ipv4Addr>) -> Result<LocalGid, VerbsError> {
    let table = context.gid_table(port)?;
    let selected = table.select(wanted).and_then(|(entry, ip)| {
        Some(LocalGid { index: u8::try_from(entry.index).ok()?, gid: entry.gid, ip })
    });
    selected.ok_or_else(|| VerbsError::NoGid { at: context.at(port), wanted, table })
}

/// A queue pair in INIT: it takes receives, and sends only once connected.
#[derive(Debug)]
pub struct VerbsQp {
    qp: Qp<Init>,
    recv: VerbsRecv,
    /// The receives that it holds, in case that it has to start again.
    posted: Vec<RecvWr>,
    local_ip: Ipv4Addr,
    mtu: Mtu,
    first_psn: Psn,
    depths: Depths,
    stats: Arc<VerbsStats>,
}

impl VerbsQp {
    /// The peer by our GID's index as it is now: entries move when addresses come and go.
    fn route_to(&self, peer: &PeerEndpoint) -> Result<(Route, Gid), VerbsError> {
        if peer.ip.is_unspecified() || peer.ip.is_broadcast() || peer.ip.is_multicast() {
            return Err(VerbsError::Peer { peer: peer.ip });
        }
        let handle = self.qp.handle();
        let local = local_gid(handle.context(), handle.port(), Some(self.local_ip))?;
        let route = Route {
            peer_qpn: peer.qpn,
            peer_gid: Gid::from(peer.ip),
            gid_index: local.index,
            port: handle.port(),
            mtu: self.mtu,
        };
        Ok((route, local.gid))
    }
}

/// Takes a queue pair that cannot send back to INIT, and posts again what the reset throws away. Where that fails
/// the queue pair is broken, and whatever is tried with it next fails as well.
fn start_again(rtr: Qp<Rtr>, recv: &mut VerbsRecv, posted: &[RecvWr]) -> (Qp<Init>, Result<(), VerbsError>) {
    let qp = match rtr.start_again() {
        Ok(qp) => qp,
        Err(refused) => return (refused.0, Err(refused.1)),
    };
    recv.forget_posted();
    let again = posted.iter().try_for_each(|wr| recv.post_recv(*wr)).map_err(|e| VerbsError::PostRecv {
        at: qp.handle().at(),
        qpn: qp.handle().qpn(),
        source: std::io::Error::other(e),
    });
    (qp, again)
}

impl UcQp for VerbsQp {
    type Send = VerbsSend;
    type Recv = VerbsRecv;
    type Error = VerbsError;

    fn qpn(&self) -> Qpn {
        self.qp.handle().qpn()
    }

    fn rkey(&self) -> Rkey {
        self.qp.handle().rx().rkey()
    }

    fn local_ip(&self) -> Ipv4Addr {
        self.local_ip
    }

    fn path_mtu(&self) -> Mtu {
        self.mtu
    }

    fn wire_stats(&self) -> Arc<dyn WireStats> {
        Arc::<VerbsStats>::clone(&self.stats)
    }

    fn post_recv(&mut self, wr: RecvWr) -> Result<(), PostError> {
        self.recv.post_recv(wr)?;
        self.posted.push(wr);
        Ok(())
    }

    fn start_at(&mut self, psn: Psn) {
        self.first_psn = psn;
    }

    /// Waits up to some seconds for a neighbour that does not answer.
    fn connect(mut self, peer: &PeerEndpoint) -> Result<(VerbsSend, VerbsRecv), ConnectError<Self>> {
        let (route, gid) = match self.route_to(peer) {
            Ok(route) => route,
            Err(error) => return Err(ConnectError { qp: self, error }),
        };
        let rtr = match self.qp.ready_to_receive(&route, gid, peer.ip) {
            Ok(rtr) => rtr,
            Err(refused) => {
                let (qp, error) = *refused;
                return Err(ConnectError { qp: Self { qp, ..self }, error });
            }
        };
        match rtr.ready_to_send(self.first_psn) {
            Ok(rts) => Ok((sending_half(&rts, self.depths, &self.stats), self.recv)),
            Err(refused) => {
                let (rtr, error) = *refused;
                let (qp, again) = start_again(rtr, &mut self.recv, &self.posted);
                Err(ConnectError { qp: Self { qp, ..self }, error: again.err().unwrap_or(error) })
            }
        }
    }
}

/// Only a queue pair in RTS has one.
fn sending_half(qp: &Qp<Rts>, depths: Depths, stats: &Arc<VerbsStats>) -> VerbsSend {
    VerbsSend::new(qp.handle(), depths.send, depths.inline, stats)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::tests::Block;
    use roce_core::{RecvCompletion, RegionId, SendWr, Sge, UcSend, Verb};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn what_a_device_cannot_do_is_said_once_in_a_process() {
        let said = [("one", 256), ("one", 256), ("two", 256), ("one", 512), ("two", 256)];
        assert_eq!(said.map(|(device, asked)| is_news(device, asked)), [true, false, true, true, false]);
    }

    /// A queue pair that came as far as RTR, and no further, still has its receives when it is back in INIT.
    #[test]
    #[ignore = "needs ROCE_TEST_DEVICE"]
    fn a_queue_pair_that_starts_again_keeps_its_receives() {
        let name =
            std::env::var("ROCE_TEST_DEVICE").expect("ROCE_TEST_DEVICE is not set: name an RDMA device");
        let device = VerbsDevice::open(VerbsConfig::new(name)).expect("opened");
        let (rx, tx) = (Block::region(), Block::region());
        let attr = QpAttr { rx, tx, send_depth: 4, recv_depth: 4, mtu: None };
        let mut qp = device.create_qp(&attr).expect("a queue pair");
        for id in 0..4 {
            qp.post_recv(RecvWr { id, offset: 0, len: 64 }).expect("room");
        }
        let itself = PeerEndpoint { qpn: qp.qpn(), rkey: None, ip: qp.local_ip() };
        let (route, gid) = qp.route_to(&itself).expect("a route");
        let rtr = qp.qp.ready_to_receive(&route, gid, itself.ip).map_err(|e| e.1).expect("RTR");
        let (init, again) = start_again(rtr, &mut qp.recv, &qp.posted);
        again.expect("posted again");
        let qp = VerbsQp { qp: init, ..qp };

        let (mut send, mut recv) = qp.connect(&itself).map_err(|e| e.error).expect("connected");
        let mut out = [RecvCompletion::EMPTY; 1];
        for id in 0..4 {
            let sge = Sge { region: RegionId::Tx, offset: 64, len: 8 };
            send.stage(&SendWr { sge, verb: Verb::Send { imm: Some(id) } }).expect("room");
            send.flush().expect("posted");
            let start = Instant::now();
            while recv.poll(&mut out).expect("a good queue") == 0 {
                assert!(start.elapsed() < Duration::from_secs(20), "nothing came");
                thread::yield_now();
            }
            assert_eq!((out[0].id, out[0].result.map(|r| r.imm)), (id, Ok(Some(id))));
        }
    }
}
