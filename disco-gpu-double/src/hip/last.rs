//! What a thread's calls failed with last, until it asks.

use std::cell::Cell;

use super::abi::Code;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(Code::SUCCESS) };
}

/// What an export returns. A failure is remembered; that something is not ready is none.
pub(crate) fn note(result: Result<(), Code>) -> Code {
    let code = result.err().unwrap_or(Code::SUCCESS);
    if code != Code::SUCCESS && code != Code::NOT_READY {
        LAST.set(code);
    }
    code
}

/// `hipGetLastError`: the failure, which is forgotten.
pub(crate) fn take() -> Code {
    LAST.replace(Code::SUCCESS)
}
