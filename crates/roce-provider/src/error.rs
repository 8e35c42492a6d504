//! Why a call was refused, and the status that says so.

use std::ffi::c_int;

use roce_ffi::{BadHandle, TextError};

use crate::abi::{INTERNAL, INVALID_ARG, UNSUPPORTED};

/// Why a call was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(transparent)]
    Handle(#[from] BadHandle),
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{option} {value}: {why}")]
    Option { option: &'static str, value: String, why: String },
    #[error("{0} needs a value")]
    NoValue(&'static str),
    #[error("--qp_config=hsb_fpga needs --peer-ip, the FPGA's address")]
    NoPeerIp,
    #[error(transparent)]
    Config(#[from] roce_transport::ConfigError),
    #[error("{0} bytes are too few for the line")]
    ShortBuffer(usize),
    #[error("there is no transport context of type {0}")]
    Kind(c_int),
    #[error("this provider was made for the other shape ({0})")]
    OtherShape(&'static str),
    #[error(transparent)]
    Transport(#[from] roce_transport::Error),
    #[error(transparent)]
    Rendezvous(#[from] roce_rendezvous::Error),
    #[error("not connected; call connect first")]
    NotConnected,
    #[error("disconnected")]
    Closed,
    #[error("too many providers; destroy some")]
    TableFull,
    #[error("starting the monitor thread: {0}")]
    Thread(std::io::Error),
}

impl Refusal {
    pub(crate) fn status(&self) -> c_int {
        match self {
            Self::Handle(_)
            | Self::Null(_)
            | Self::Text(_)
            | Self::Option { .. }
            | Self::NoValue(_)
            | Self::NoPeerIp
            | Self::Config(_)
            | Self::ShortBuffer(_)
            | Self::Kind(_) => INVALID_ARG,
            Self::OtherShape(_) => UNSUPPORTED,
            Self::Transport(_)
            | Self::Rendezvous(_)
            | Self::NotConnected
            | Self::Closed
            | Self::TableFull
            | Self::Thread(_) => INTERNAL,
        }
    }
}
