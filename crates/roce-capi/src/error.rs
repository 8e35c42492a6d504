//! Why a call was refused.

use roce_core::ShortMetadata;
use roce_ffi::{BadHandle, TextError};
use roce_transport::{ConfigError, Error, Mode};

/// Why a call was refused; its text is what standard error and `cpu_roce_last_error` tell.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Handle(#[from] BadHandle),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Transport(#[from] Error),
    #[error(transparent)]
    Metadata(#[from] ShortMetadata),
    #[error("{what} is {value}; it must be {expected}")]
    Argument { what: &'static str, value: String, expected: &'static str },
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("more than one of forward, rx_only, tx_only and unified is set; choose one")]
    ManyModes,
    #[error("too many {0}; destroy some")]
    TableFull(&'static str),
    #[error("there is no option `{key}`; there are {known}")]
    NoOption { key: String, known: String },
    #[error("too late: the transceiver is set up; call it before setup and start")]
    SetUp,
    #[error("the transceiver is not set up; call setup first")]
    NotSetUp,
    #[error("the transceiver is not connected")]
    NotConnected,
    #[error("the transceiver is closed")]
    Closed,
    #[error("no peer_ip was given at creation; call setup and connect")]
    NoPeer,
    #[error("the transceiver was made in mode {0:?}, not unified")]
    NotUnified(Mode),
    #[error("a poller has no part in unified mode, where the thread that polls is yours")]
    Unified,
    #[error("unified mode without a callback has nothing to monitor; call rx_poll and tx_publish")]
    NoCallback,
    #[error("blocking_monitor runs already")]
    Monitored,
    #[error("not from within the transceiver's own callback")]
    FromCallback,
    #[error("the callback wants to send {len} bytes of a slot of {slot_size}; nothing is sent")]
    AnswerTooLong { len: usize, slot_size: u32 },
}

impl Refusal {
    pub(crate) fn argument(
        what: &'static str,
        value: impl std::fmt::Display,
        expected: &'static str,
    ) -> Self {
        Self::Argument { what, value: value.to_string(), expected }
    }
}
