//! A test of the standard harness that starts a session of processes without `disco::init_test!()`.

#![cfg(target_os = "linux")]

use disco::Builder;

#[test]
fn a_session_in_a_test_without_init_test_is_an_error_that_names_it() {
    let error = Builder::processes(2).start().map(drop).map_err(|error| error.to_string());
    let expected = "a session of processes executes this program again for each worker: call `disco::init()` first in \
                    `main`; in a `#[test]`, write `disco::init_test!();` as its first line";
    assert_eq!(error, Err(expected.to_owned()));
}
