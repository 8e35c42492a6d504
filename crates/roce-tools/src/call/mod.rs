//! Calls to a service: a session with it, values as they are written on a command line, and repeated calls.

mod run;
mod session;
mod value;

pub use run::{Plan, Report, run};
pub use session::{Session, SessionConfig};
pub use value::{ResultType, Value};
