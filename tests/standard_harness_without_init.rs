//! What a test under the standard harness meets that makes a session of processes and does not say `disco::init_test!()`.

#![cfg(target_os = "linux")]

use disco::Builder;

#[test]
fn a_test_without_its_first_line_is_told_to_write_it() {
    let error = Builder::processes(2).start().map(drop).map_err(|error| error.to_string());
    let expected = "a session of processes starts this program again for each worker: call `disco::init()` first thing in \
                    `main`; in a `#[test]`, write `disco::init_test!();` as its first line";
    assert_eq!(error, Err(expected.to_owned()));
}
