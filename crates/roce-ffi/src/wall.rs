//! The wall between Rust and C.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::report;

/// Runs the body of the C function `call`. A panic in it is reported on standard error, and `refusal` returned.
#[inline]
pub fn wall<R>(call: &str, refusal: R, body: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(panic) => {
            defect(call, &*panic);
            refusal
        }
    }
}

#[cold]
fn defect(call: &str, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    report(call, format_args!("a defect of this library: {}", text.unwrap_or("a panic without a message")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_the_refusal() {
        assert_eq!(wall("f", 0, || 1), 1);
        assert_eq!(wall("f", 0, || panic!("{}", "with text")), 0);
        assert_eq!(wall("f", 0, || std::panic::panic_any(3)), 0);
    }
}
