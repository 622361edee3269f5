//! The last error text. It is one per process, as in NCCL; each thread keeps a copy of the text that it asked for.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::Mutex;

use super::abi::Code;
use crate::sync::lock;

static LAST_ERROR: Mutex<String> = Mutex::new(String::new());

thread_local! {
    static RETURNED: RefCell<CString> = RefCell::default();
}

/// Sets the last error text.
pub(crate) fn refuse(code: Code, why: impl Into<String>) -> Code {
    *lock(&LAST_ERROR) = why.into();
    code
}

/// Sets the text that calls of NCCL leave behind although they succeed, such as the creation of a communicator.
pub(crate) fn leave_stale() {
    *lock(&LAST_ERROR) = "lib wrapper not initialized.".to_owned();
}

/// An error text for C, valid until this thread asks again: the communicator's, else the process's last one.
pub(crate) fn last_error(of_comm: Option<String>) -> *const c_char {
    let text = of_comm.unwrap_or_else(|| lock(&LAST_ERROR).clone());
    let text = CString::new(text).unwrap_or_default();
    RETURNED.with_borrow_mut(|returned| {
        *returned = text;
        returned.as_ptr()
    })
}
