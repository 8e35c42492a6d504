//! Why a table, a schema or a loop could not be made. Serving itself has no errors: they go to the caller.

use crate::rpc::HEADER_LEN;
use crate::schema::{MAX_ARGS, MAX_RESULTS, PayloadType};

/// A refused set-up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// Two functions would answer to one id. Either one name was registered twice, or two names share a hash;
    /// rename one.
    #[error("functions {first:?} and {second:?} have the same id {id:#010x}; rename one")]
    Duplicate {
        /// The id of both.
        id: u32,
        /// The one that is in the table.
        first: String,
        /// The one that was refused.
        second: String,
    },
    /// A C table's entry that no host thread can serve.
    #[error("function {id:#010x} has dispatch mode {mode}; only HOST_CALL (2) is served here")]
    NotHostCall {
        /// The entry's function id.
        id: u32,
        /// Its dispatch mode.
        mode: u8,
    },
    /// A C table's entry without a handler.
    #[error("function {id:#010x} has a null handler")]
    NullHandler {
        /// The entry's function id.
        id: u32,
    },
    /// A C table whose pointer is null, though it counts entries.
    #[error("a function table of {count} entries is at null")]
    NullTable {
        /// Entries that the table claims.
        count: u32,
    },
    /// A descriptor that its type does not allow.
    #[error("{elements} elements of {payload:?} are no descriptor: a scalar is one, an array below 4 GiB")]
    TypeSize {
        /// The type.
        payload: PayloadType,
        /// Elements asked for.
        elements: u32,
    },
    /// More arguments or results than a schema has room for.
    #[error("{args} arguments and {results} results; a schema holds {MAX_ARGS} and {MAX_RESULTS}")]
    SchemaSize {
        /// Arguments asked for.
        args: usize,
        /// Results asked for.
        results: usize,
    },
    /// Frames in which no response fits.
    #[error("frames of {frame_size} bytes cannot hold a response; take at least {HEADER_LEN}")]
    FrameTooSmall {
        /// Bytes per frame.
        frame_size: u32,
    },
    /// Requests are answered in the slot of the same index, so both rings need the same slots.
    #[error("{rx} RX slots and {tx} TX slots; a request is answered in the slot of its own index")]
    SlotCounts {
        /// Slots of the RX ring.
        rx: u32,
        /// Slots of the TX ring.
        tx: u32,
    },
}
