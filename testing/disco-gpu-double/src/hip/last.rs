//! The last error of a thread, which `hipGetLastError` returns and clears.

use std::cell::Cell;

use super::abi::Code;

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(Code::SUCCESS) };
}

/// Converts a result to the return code of an export, and records errors except `hipErrorNotReady`.
pub(crate) fn note(result: Result<(), Code>) -> Code {
    let code = Code::of(result);
    if code != Code::SUCCESS && code != Code::NOT_READY {
        LAST.set(code);
    }
    code
}

/// `hipGetLastError`: returns the last error and clears it.
pub(crate) fn take() -> Code {
    LAST.replace(Code::SUCCESS)
}
