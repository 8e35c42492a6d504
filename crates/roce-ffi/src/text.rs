//! Strings from C.

use std::ffi::{CStr, c_char};

/// A string that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} is not UTF-8")]
pub struct TextError {
    /// What it was to be.
    pub what: &'static str,
}

/// A copy of the string that C calls `what`; `None` for NULL.
///
/// # Safety
///
/// `pointer` is NULL, or points to a string that ends with a 0 byte and that nobody writes during the call.
pub unsafe fn text(pointer: *const c_char, what: &'static str) -> Result<Option<String>, TextError> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, and the caller vouches for the rest.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map(|s| Some(s.to_owned())).map_err(|_| TextError { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_copied_and_checked() {
        let read = |s: &CStr| {
            // SAFETY: a live string literal with its terminator.
            unsafe { text(s.as_ptr(), "name") }
        };
        assert_eq!(read(c"soft"), Ok(Some("soft".to_owned())));
        assert_eq!(read(c"\xFF"), Err(TextError { what: "name" }));
        // SAFETY: NULL is among the pointers that it allows.
        assert_eq!(unsafe { text(std::ptr::null(), "name") }, Ok(None));
    }
}
