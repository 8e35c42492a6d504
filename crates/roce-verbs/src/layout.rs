//! The structures that cross into C have the sizes and offsets that the C compiler gives them, and the constants
//! their values: a program made from the installed headers says what those are.

use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

use crate::cq::STATUS;
use crate::sys::{
    self, AsyncEvent, ibv_context, ibv_cq, ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_global_route, ibv_mr,
    ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_wc, verbs_context,
};

/// A C expression, and what it must come to.
type Fact = (String, u64);

macro_rules! structure {
    ($facts:ident, $type:ident as $c:literal $(, $field:ident $(. $more:ident)* as $cfield:literal)*) => {
        $facts.push((concat!("sizeof(", $c, ")").to_owned(), size_of::<$type>() as u64));
        $($facts.push((
            concat!("offsetof(", $c, ", ", $cfield, ")").to_owned(),
            offset_of!($type, $field $(. $more)*) as u64,
        ));)*
    };
}

macro_rules! fields {
    ($facts:ident, $type:ident as $c:literal: $($field:ident)*) => {
        $facts.push((concat!("sizeof(", $c, ")").to_owned(), size_of::<$type>() as u64));
        $($facts.push((
            concat!("offsetof(", $c, ", ", stringify!($field), ")").to_owned(),
            offset_of!($type, $field) as u64,
        ));)*
    };
}

fn structures() -> Vec<Fact> {
    let mut facts = Vec::new();
    fields!(facts, ibv_sge as "struct ibv_sge": addr length lkey);
    fields!(facts, ibv_recv_wr as "struct ibv_recv_wr": wr_id next sg_list num_sge);
    structure!(facts, ibv_send_wr as "struct ibv_send_wr",
        wr_id as "wr_id", next as "next", sg_list as "sg_list", num_sge as "num_sge", opcode as "opcode",
        send_flags as "send_flags", imm_data_invalidated_rkey_union as "imm_data",
        wr as "wr.rdma.remote_addr", wr.rdma.rkey as "wr.rdma.rkey");
    structure!(facts, ibv_wc as "struct ibv_wc",
        wr_id as "wr_id", status as "status", opcode as "opcode", vendor_err as "vendor_err",
        byte_len as "byte_len", imm_data_invalidated_rkey_union as "imm_data", wc_flags as "wc_flags");
    fields!(facts, ibv_qp_cap as "struct ibv_qp_cap":
        max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data);
    fields!(facts, ibv_qp_init_attr as "struct ibv_qp_init_attr":
        qp_context send_cq recv_cq srq cap qp_type sq_sig_all);
    fields!(facts, ibv_qp_attr as "struct ibv_qp_attr":
        qp_state path_mtu rq_psn sq_psn dest_qp_num qp_access_flags ah_attr pkey_index port_num);
    structure!(facts, ibv_global_route as "struct ibv_global_route",
        dgid as "dgid", sgid_index as "sgid_index", hop_limit as "hop_limit");
    facts.push((
        "offsetof(struct ibv_qp_attr, ah_attr.is_global)".to_owned(),
        offset_of!(ibv_qp_attr, ah_attr.is_global) as u64,
    ));
    facts.push((
        "offsetof(struct ibv_qp_attr, ah_attr.port_num)".to_owned(),
        offset_of!(ibv_qp_attr, ah_attr.port_num) as u64,
    ));
    fields!(facts, ibv_qp as "struct ibv_qp": context qp_context qp_num);
    fields!(facts, ibv_cq as "struct ibv_cq": context cq_context);
    fields!(facts, ibv_mr as "struct ibv_mr": lkey rkey);
    fields!(facts, ibv_pd as "struct ibv_pd": context);
    fields!(facts, ibv_device_attr as "struct ibv_device_attr": max_qp_wr max_cqe phys_port_cnt);
    fields!(facts, ibv_port_attr as "struct ibv_port_attr":
        state max_mtu active_mtu gid_tbl_len max_msg_sz link_layer);
    structure!(facts, ibv_gid as "union ibv_gid");
    fields!(facts, ibv_gid_entry as "struct ibv_gid_entry": gid gid_index port_num gid_type ndev_ifindex);
    structure!(facts, AsyncEvent as "struct ibv_async_event", element as "element", event_type as "event_type");
    structure!(facts, ibv_context as "struct ibv_context",
        ops as "ops", ops.poll_cq as "ops.poll_cq", ops.post_send as "ops.post_send",
        ops.post_recv as "ops.post_recv", async_fd as "async_fd", abi_compat as "abi_compat");
    fields!(facts, verbs_context as "struct verbs_context": query_port sz context);
    facts
}

fn constants() -> Vec<Fact> {
    let mut facts: Vec<Fact> =
        STATUS.iter().zip(0..).map(|(name, value)| ((*name).to_owned(), value)).collect();
    let mut constant = |name: &str, value: u64| facts.push((name.to_owned(), value));
    constant("IBV_LINK_LAYER_INFINIBAND", u64::from(sys::LINK_LAYER_INFINIBAND));
    constant("IBV_LINK_LAYER_ETHERNET", u64::from(sys::LINK_LAYER_ETHERNET));
    constant("IBV_ACCESS_LOCAL_WRITE", u64::from(sys::LOCAL_WRITE));
    constant("(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)", u64::from(sys::REMOTE_WRITE));
    for (number, name) in crate::events::NUMBERS {
        constant(name, u64::from(number.unsigned_abs()));
    }
    facts
}

/// Compiles and runs a program that prints each expression's value on a line of its own.
fn ask_c(expressions: impl Iterator<Item = String>) -> Vec<u64> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for expression in expressions {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({expression}));").expect("a string");
    }
    source.push_str("return 0; }\n");
    let (file, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&file, source).expect("written");
    let compiled = Command::new("cc").arg("-o").args([&program, &file]).output().expect("a C compiler, cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let said = Command::new(&program).output().expect("it runs");
    let said = String::from_utf8(said.stdout).expect("numbers");
    said.lines().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn as_the_c_compiler_lays_them_out() {
    let facts: Vec<Fact> = structures().into_iter().chain(constants()).collect();
    let said = ask_c(facts.iter().map(|(expression, _)| expression.clone()));
    assert_eq!(said.len(), facts.len());
    for ((expression, ours), theirs) in facts.iter().zip(said) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
