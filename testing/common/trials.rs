//! Tests of programs with a `main` of their own, named after their functions.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Tests by name.
pub type Tests = Vec<(&'static str, fn())>;

/// Defines `fn tests() -> Tests`, which names tests after their functions: `tests!(name, name)`, or with the name of the
/// module before the names, `tests!("module": name, name)`.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) fn tests() -> $crate::trials::Tests {
            vec![$((stringify!($name), $name as fn())),*]
        }
    };
    ($module:literal: $($name:ident),* $(,)?) => {
        pub(crate) fn tests() -> $crate::trials::Tests {
            vec![$((concat!($module, "::", stringify!($name)), $name as fn())),*]
        }
    };
}
pub use tests;

/// As [`tests!`], for tests that run once for each `Kind` of the module above: `tests!(name, name)` defines the list
/// `tests`, and `tests!(list: name, name)` another one.
#[macro_export]
macro_rules! tests_of_kinds {
    ($list:ident: $($name:ident),* $(,)?) => {
        pub(crate) fn $list() -> super::Tests {
            vec![$((stringify!($name), $name as fn(super::Kind))),*]
        }
    };
    ($($name:ident),* $(,)?) => {
        $crate::tests_of_kinds![tests: $($name),*];
    };
}
pub use tests_of_kinds;

/// A test that succeeds unless it panics.
pub fn trial(name: impl Into<String>, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// Runs the tests that the command line names, at most `most` at a time: none is as many as there are processors.
pub fn run(trials: impl IntoIterator<Item = Trial>, most: Option<usize>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if let Some(most) = most {
        arguments.test_threads = Some(arguments.test_threads.unwrap_or(most).min(most));
    }
    libtest_mimic::run(&arguments, trials.into_iter().collect()).exit_code()
}

/// [`run`], for tests by name.
pub fn run_named(tests: impl IntoIterator<Item = (&'static str, fn())>, most: Option<usize>) -> ExitCode {
    run(tests.into_iter().map(|(name, test)| trial(name, test)), most)
}
