//! A program that registers two worker functions under one name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use disco::{Builder, Result, WorkerContext};

mod layers {
    use super::*;

    fn forward(_: &mut WorkerContext) -> Result<()> {
        Ok(())
    }
    disco::register_function!("tests.forward", forward);
}

mod heads {
    use super::*;

    fn forward(_: &mut WorkerContext) -> Result<()> {
        Ok(())
    }
    disco::register_function!("tests.forward", forward);
}

#[test]
fn two_functions_of_one_name_are_a_start_error_that_names_both_places() {
    let error = Builder::threads(2).start().unwrap_err().to_string();
    assert_eq!(
        error,
        "two worker functions are registered as `tests.forward`: in twice::heads at testing/suite/twice.rs:22 and in twice::layers at \
         testing/suite/twice.rs:13; give one of them another name"
    );
}
