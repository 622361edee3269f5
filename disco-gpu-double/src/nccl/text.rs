//! What was said last. It is the process's, as in NCCL; each thread keeps what it has asked for.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::sync::Mutex;

use super::abi::Code;
use crate::sync::lock;

static LAST: Mutex<String> = Mutex::new(String::new());

thread_local! {
    static ASKED: RefCell<CString> = RefCell::default();
}

/// Says why something is refused.
pub(crate) fn refuse(code: Code, why: impl Into<String>) -> Code {
    *lock(&LAST) = why.into();
    code
}

/// A text for C; it stays until this thread asks again. The process's last, unless there is one of a communicator.
pub(crate) fn answer(of_comm: Option<String>) -> *const c_char {
    let text = of_comm.unwrap_or_else(|| lock(&LAST).clone());
    let text = CString::new(text).unwrap_or_default();
    ASKED.with_borrow_mut(|asked| {
        *asked = text;
        asked.as_ptr()
    })
}
