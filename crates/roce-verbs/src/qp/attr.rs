//! The attributes that each state of a UC queue pair takes, no more and no less.

use std::ffi::c_int;

use roce_core::{Gid, Mtu, Psn, Qpn};

use crate::sys::{
    self, Zeroed, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_state,
};

/// Both ends start to count here.
const FIRST_PSN: u32 = 0;

/// Packets may cross as many routers as IP can count.
const HOP_LIMIT: u8 = 255;

/// Attributes, and which of them count.
pub(crate) struct Change {
    pub(crate) attr: ibv_qp_attr,
    pub(crate) mask: c_int,
    pub(crate) to: &'static str,
}

/// The way to the peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) peer_qpn: Qpn,
    pub(crate) peer_gid: Gid,
    /// Of our own GID, in the port's table.
    pub(crate) gid_index: u8,
    pub(crate) port: u8,
    pub(crate) mtu: Mtu,
}

pub(crate) fn reset() -> Change {
    change(ibv_qp_state::IBV_QPS_RESET, "RESET", 0)
}

pub(crate) fn init(port: u8) -> Change {
    let others = mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_ACCESS_FLAGS.0;
    let mut change = change(ibv_qp_state::IBV_QPS_INIT, "INIT", others);
    change.attr.pkey_index = 0;
    change.attr.port_num = port;
    change.attr.qp_access_flags = sys::REMOTE_WRITE;
    change
}

pub(crate) fn ready_to_receive(route: &Route) -> Change {
    let others =
        mask::IBV_QP_AV.0 | mask::IBV_QP_PATH_MTU.0 | mask::IBV_QP_DEST_QPN.0 | mask::IBV_QP_RQ_PSN.0;
    let mut change = change(ibv_qp_state::IBV_QPS_RTR, "RTR", others);
    let attr = &mut change.attr;
    attr.path_mtu = mtu_code(route.mtu);
    attr.dest_qp_num = route.peer_qpn.get();
    attr.rq_psn = FIRST_PSN;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = route.port;
    attr.ah_attr.grh = ibv_global_route {
        dgid: ibv_gid { raw: route.peer_gid.bytes() },
        flow_label: 0,
        sgid_index: route.gid_index,
        hop_limit: HOP_LIMIT,
        traffic_class: 0,
    };
    change
}

pub(crate) fn ready_to_send(first: Psn) -> Change {
    let mut change = change(ibv_qp_state::IBV_QPS_RTS, "RTS", mask::IBV_QP_SQ_PSN.0);
    change.attr.sq_psn = first.get();
    change
}

fn change(state: ibv_qp_state::Type, to: &'static str, others: u32) -> Change {
    let mut attr = ibv_qp_attr::zeroed();
    attr.qp_state = state;
    Change { attr, mask: (mask::IBV_QP_STATE.0 | others).cast_signed(), to }
}

fn mtu_code(mtu: Mtu) -> ibv_mtu::Type {
    match mtu {
        Mtu::B256 => ibv_mtu::IBV_MTU_256,
        Mtu::B512 => ibv_mtu::IBV_MTU_512,
        Mtu::B1024 => ibv_mtu::IBV_MTU_1024,
        Mtu::B2048 => ibv_mtu::IBV_MTU_2048,
        Mtu::B4096 => ibv_mtu::IBV_MTU_4096,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// The masks that the InfiniBand specification (table 91, UC) requires, from the header's numbers: reliable
    /// connections have more, and a UC queue pair refuses those.
    #[test]
    fn masks_are_those_of_uc() {
        let route = Route {
            peer_qpn: Qpn::from_low_bits(0x1234),
            peer_gid: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
            gid_index: 3,
            port: 2,
            mtu: Mtu::B2048,
        };
        assert_eq!(reset().mask, 1);
        assert_eq!(init(2).mask, 1 | 1 << 3 | 1 << 4 | 1 << 5);
        let rts = ready_to_send(Psn::new(7));
        assert_eq!((rts.mask, rts.attr.sq_psn), (1 | 1 << 16, 7));
        let rtr = ready_to_receive(&route);
        assert_eq!(rtr.mask, 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20);
        assert_eq!((rtr.attr.path_mtu, rtr.attr.dest_qp_num), (4, 0x1234));
        let path = rtr.attr.ah_attr;
        assert_eq!((path.is_global, path.port_num, path.grh.sgid_index, path.grh.hop_limit), (1, 2, 3, 255));
    }
}
