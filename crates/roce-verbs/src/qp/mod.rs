//! UC queue pairs: what libibverbs knows, the attributes of each state, and the states as types.

mod attr;
#[allow(unsafe_code)]
mod handle;
mod state;

pub(crate) use attr::Route;
pub(crate) use handle::{Depths, QpHandle, Resources};
pub(crate) use state::{Init, Qp, Rtr, Rts};
