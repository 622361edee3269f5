//! Errors that functions of libraries raise.

#![allow(unsafe_code)]

use std::any::Any as StdAny;
use std::error::Error as StdError;

use disco_core::user_error::ErrorEntry;
use serde::{Deserialize, Serialize};

use crate::abi::{ErrorCell, TypeIndex};
use crate::value::{Any, bytes};

/// An error that a function of a library has raised. It crosses lanes as a value: the controller gets it by
/// [`Error::downcast_ref`](disco_core::Error::downcast_ref).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{kind}: {message}")]
pub struct Raised {
    /// The kind, such as `ValueError`.
    pub kind: String,
    /// The text.
    pub message: String,
    /// Lines of the stack as the library gives them; empty if it gives none.
    pub backtrace: String,
}

impl Raised {
    /// An error that a function raises. Python maps the kinds of its own exceptions, such as `ValueError`, to these.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: kind.into(), message: message.into(), backtrace: String::new() }
    }

    /// The error of a call that has failed: the error object in `result`, which libraries without libtvm_ffi leave
    /// there, or the error that libtvm_ffi had `raised`. The code of the call is not part of it, since libtvm_ffi passes
    /// on another one.
    pub(crate) fn take(result: &Any, raised: Option<Any>) -> Self {
        let error = if result.type_index() == TypeIndex::ERROR { Some(result.clone()) } else { raised };
        error.as_ref().and_then(Self::read).unwrap_or_else(|| Self {
            kind: "RuntimeError".to_owned(),
            message: "the function failed and raised no error".to_owned(),
            backtrace: String::new(),
        })
    }

    /// Copies the content of an error object.
    pub(crate) fn read(error: &Any) -> Option<Self> {
        // SAFETY: error objects have an error cell.
        let cell = unsafe { error.cell::<ErrorCell>(TypeIndex::ERROR) }?;
        // SAFETY: the arrays of the cell are valid as long as the object.
        let [kind, message, backtrace] = [cell.kind, cell.message, cell.backtrace]
            .map(|array| String::from_utf8_lossy(unsafe { bytes(&array) }).into_owned());
        Some(Self { kind, message, backtrace })
    }
}

fn encode(error: &(dyn StdError + 'static)) -> Option<Vec<u8>> {
    serde_json::to_vec(error.downcast_ref::<Raised>()?).ok()
}

fn decode(content: &[u8]) -> Option<Box<dyn StdAny + Send + Sync>> {
    serde_json::from_slice::<Raised>(content).ok().map(|raised| Box::new(raised) as _)
}

disco_core::inventory::submit! { ErrorEntry { type_name: "disco_ffi::Raised", encode, decode } }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap;

    #[test]
    fn an_error_in_the_result_has_priority_and_a_failure_without_an_error_is_one() {
        let raised = Raised::take(&heap::error("ValueError", "too small"), Some(heap::error("Other", "")));
        assert_eq!(raised.to_string(), "ValueError: too small");
        assert_eq!(Raised::take(&Any::NONE, Some(heap::error("Other", "text"))).to_string(), "Other: text");
        let text = Raised::take(&Any::NONE, None).to_string();
        assert_eq!(text, "RuntimeError: the function failed and raised no error");
    }

    #[test]
    fn an_error_crosses_lanes_as_a_value() {
        let raised = Raised::read(&heap::error("ValueError", "too small")).unwrap();
        let back = decode(&encode(&raised).unwrap()).unwrap();
        assert_eq!(*back.downcast::<Raised>().unwrap(), raised);
    }
}
