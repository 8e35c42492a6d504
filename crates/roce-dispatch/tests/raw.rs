//! Handlers with the C ABI, and C function tables as bytes.

mod common;

use std::ffi::c_void;

use common::*;
use roce_dispatch::rpc::{HEADER_LEN, RESPONSE_MAGIC, Status, function_id};
use roce_dispatch::schema::{DispatchMode, FunctionEntry, RawFunctionTable};
use roce_dispatch::{DispatchError, FunctionTable, RawHandler};

unsafe extern "C" fn c_silent(_: *const c_void, _: *mut c_void, _: usize) {}

/// Claims more results than any slot holds, with a status of its own.
unsafe extern "C" fn c_boastful(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize) {
    // SAFETY: the dispatcher passes `slot_size` bytes at both, and a slot holds both headers.
    unsafe {
        rx_slot.cast::<u8>().copy_to(tx_slot.cast::<u8>(), HEADER_LEN);
        tx_slot.cast::<u32>().write(RESPONSE_MAGIC);
        tx_slot.cast::<u32>().add(1).write(7);
        let claimed = if rx_slot.cast::<u8>().add(HEADER_LEN).read() == 0 { 0 } else { slot_size };
        tx_slot.cast::<u32>().add(2).write(u32::try_from(claimed).unwrap_or(u32::MAX));
    }
}

fn raw(name: &str, handler: RawHandler) -> FunctionTable {
    let mut table = FunctionTable::new();
    // SAFETY: the handlers of this file keep to their slots and do not unwind when the dispatcher is right.
    unsafe { table.register_raw(name, handler) }.expect("an empty table");
    table
}

#[test]
fn a_raw_handler_sees_and_writes_whole_slots() {
    let (mut wire, mut dispatcher) = serve(geometry(2, 256, 128), raw("rpc_increment", c_increment));
    for (id, len) in (0..).zip([100, 3, 0, 50]) {
        let answer = wire.call(&mut dispatcher, id % 2, &request("rpc_increment", id, &vec![9; len]));
        assert_answers(&answer, id, Status::SUCCESS, &vec![10; len]);
    }
    assert_eq!(counts(&dispatcher).responses, 4);
}

#[test]
fn a_raw_result_past_the_frame_is_refused() {
    let (mut wire, mut dispatcher) = serve(geometry(2, 256, 64), raw("rpc_increment", c_increment));
    let answer = wire.call(&mut dispatcher, 0, &request("rpc_increment", 1, &[9; 41]));
    assert_answers(&answer, 1, Status::RESULT_TOO_LARGE, &[]);

    let (mut wire, mut dispatcher) = serve(geometry(2, 256, 64), raw("boast", c_boastful));
    let answer = wire.call(&mut dispatcher, 0, &request("boast", 2, &[1]));
    assert_answers(&answer, 2, Status::RESULT_TOO_LARGE, &[]);
    let answer = wire.call(&mut dispatcher, 1, &request("boast", 3, &[0]));
    assert_answers(&answer, 3, Status::from_code(7), &[]);
    assert_eq!(counts(&dispatcher).handler_errors, 1);
    assert_eq!(counts(&dispatcher).result_too_large, 1);
}

#[test]
fn a_raw_handler_that_writes_nothing_is_answered_for() {
    let mut table = raw("silent", c_silent);
    table.register("rpc_increment", increment).expect("names differ");
    let (mut wire, mut dispatcher) = serve(geometry(1, 64, 64), table);
    // First a response that a silent handler could be mistaken for.
    wire.call(&mut dispatcher, 0, &request("rpc_increment", 1, &[1; 30]));
    let answer = wire.call(&mut dispatcher, 0, &request("silent", 2, &[]));
    assert_answers(&answer, 2, Status::NO_RESPONSE, &[]);
    assert_eq!(counts(&dispatcher).no_response, 1);
}

/// An entry written byte by byte at the offsets that C programs use.
fn entry_bytes(handler: *const c_void, id: u32, mode: u8) -> FunctionEntry {
    let mut bytes = [0_u8; 176];
    bytes[..8].copy_from_slice(&handler.expose_provenance().to_ne_bytes());
    bytes[8..12].copy_from_slice(&id.to_ne_bytes());
    bytes[12] = mode;
    bytes[16] = 1; // num_args
    bytes[17] = 1; // num_results
    bytes[20] = 0x20; // args[0]: ARRAY_UINT8
    bytes[24..28].copy_from_slice(&64_u32.to_ne_bytes());
    bytes[28..32].copy_from_slice(&64_u32.to_ne_bytes());
    bytes[116] = 0x11; // results[0]: INT32
    bytes[120..124].copy_from_slice(&4_u32.to_ne_bytes());
    bytes[168..].copy_from_slice(&0x1122_3344_5566_7788_u64.to_ne_bytes());
    // SAFETY: the struct is plain data of 176 bytes; a pointer takes any value.
    unsafe { std::mem::transmute(bytes) }
}

fn handler(f: RawHandler) -> *const c_void {
    f as *const c_void
}

fn register(table: &mut FunctionTable, entries: &[FunctionEntry]) -> Result<(), DispatchError> {
    let raw = RawFunctionTable {
        entries: entries.as_ptr(),
        count: entries.len().try_into().expect("a few entries"),
    };
    // SAFETY: the entries are live, and their handlers are those of this file.
    unsafe { table.register_c_table(&raw) }
}

#[test]
fn a_c_table_is_read_as_c_lays_it_out() {
    let host_call = DispatchMode::HostCall.id();
    let entry = entry_bytes(handler(c_increment), 0x1234_5678, host_call);
    assert_eq!(entry.schema.num_args, 1);
    assert_eq!(entry.schema.args[0].size_bytes, 64);
    assert_eq!(entry.schema.args[0].num_elements, 64);
    assert_eq!(entry.schema.results[0].type_id, 0x11);
    assert_eq!(entry.schema.results[0].size_bytes, 4);
    assert_eq!(entry.routing_key, 0x1122_3344_5566_7788);

    let other = entry_bytes(handler(c_silent), function_id("silent"), host_call);
    let mut table = FunctionTable::new();
    assert_eq!(register(&mut table, &[entry, other]), Ok(()));
    assert!(table.contains(0x1234_5678) && table.contains(function_id("silent")));

    let (mut wire, mut dispatcher) = serve(geometry(2, 128, 128), table);
    let mut frame = request("", 5, &[1, 2]);
    frame[4..8].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
    assert_answers(&wire.call(&mut dispatcher, 0, &frame), 5, Status::SUCCESS, &[2, 3]);
}

#[test]
fn c_entries_that_cannot_be_served_are_refused() {
    let host_call = DispatchMode::HostCall.id();
    let good = entry_bytes(handler(c_silent), 1, host_call);
    let refused = |entries: &[FunctionEntry]| register(&mut FunctionTable::new(), entries);
    assert_eq!(
        refused(&[entry_bytes(handler(c_silent), 2, DispatchMode::DeviceCall.id())]),
        Err(DispatchError::NotHostCall { id: 2, mode: 0 })
    );
    assert_eq!(
        refused(&[good, entry_bytes(std::ptr::null(), 3, host_call)]),
        Err(DispatchError::NullHandler { id: 3 })
    );
    assert!(matches!(refused(&[good, good]), Err(DispatchError::Duplicate { id: 1, .. })));
    assert_eq!(refused(&[]), Ok(()));

    let null = RawFunctionTable { entries: std::ptr::null(), count: 2 };
    // SAFETY: a null table is refused before it is read.
    let result = unsafe { FunctionTable::new().register_c_table(&null) };
    assert_eq!(result, Err(DispatchError::NullTable { count: 2 }));
}
