//! A test of the standard harness that starts a session of processes without `disco::init_test!()`.

use disco::Builder;

use crate::own_process;

#[test]
fn a_session_without_init_test_is_refused() {
    own_process::run(
        "standard_harness_without_init::a_session_in_a_test_without_init_test_is_an_error_that_names_it",
        |_| {},
    );
}

#[test]
#[ignore = "run by the test above in another process, in which no test has called `init_test!`"]
fn a_session_in_a_test_without_init_test_is_an_error_that_names_it() {
    let error = Builder::processes(2).start().map(drop).map_err(|error| error.to_string());
    let expected = "a session of processes executes this program again for each worker: call `disco::init()` first in \
                    `main`; in a `#[test]`, write `disco::init_test!();` as its first line";
    assert_eq!(error, Err(expected.to_owned()));
}
