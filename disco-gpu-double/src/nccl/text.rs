//! The last error text. It is one per process, as in NCCL; each thread keeps a copy of the text that it asked for.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::Mutex;

use super::abi::Code;
use crate::sync::lock;

static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    static ASKED: RefCell<CString> = RefCell::default();
}

/// Sets the last error text.
pub(crate) fn refuse(code: Code, why: impl Into<String>) -> Code {
    *lock(&LAST) = why.into();
    code
}

/// An error text for C, valid until this thread asks again: the communicator's, else the process's last one.
pub(crate) fn answer(of_comm: Option<String>) -> *const c_char {
    let text = of_comm.unwrap_or_else(|| lock(&LAST).clone());
    let text = CString::new(text).unwrap_or_default();
    ASKED.with_borrow_mut(|asked| {
        *asked = text;
        asked.as_ptr()
    })
}
