//! The backend `nccl` on a test double of NCCL and of the CUDA driver, through the loaders that programs use. What the double can't
//! show stands in its documentation: nothing here has met a GPU.
//!
//! Each test runs in a process of its own, whose environment says what the double does: [`on_the_double!`] writes two of a test, one
//! that starts the process, and one that runs in it. With `DISCO_TEST_GPU=1` the tests of [`on_the_double_or_a_gpu!`], and those of
//! `processes` that plan no fault of the double, run on this machine's GPUs, of which one is enough. The others say that they are
//! skipped, and why (`--nocapture` shows it).

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod allocations;
mod alone;
mod copies;
mod costs;
mod devices;
mod failure;
mod graph_ends;
mod graph_refusals;
mod graphs;
mod kernels;
mod memory;
mod one_device;
mod order;
mod overlap;
mod p2p;
mod processes;
mod waits;

/// A test that runs in a process of its own, with these variables. `DISCO_TEST_GPU=1` skips it: it asks for what only the double
/// does.
macro_rules! on_the_double {
    ($(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        $crate::in_its_own_process! { $crate::alone::On::Double, $(#[$doc])* $name, [$($variable = $value),*], $body }
    };
}
pub(crate) use on_the_double;

/// The same of a test that one GPU can show, too: `DISCO_TEST_GPU=1` runs it on that.
macro_rules! on_the_double_or_a_gpu {
    ($(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        $crate::in_its_own_process! { $crate::alone::On::Either, $(#[$doc])* $name, [$($variable = $value),*], $body }
    };
}
pub(crate) use on_the_double_or_a_gpu;

macro_rules! in_its_own_process {
    ($on:expr, $(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),*], $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "as the test needs")]
            use super::*;

            #[test]
            fn in_a_process_of_its_own() {
                let name = concat!(module_path!(), "::inside");
                let name = name.split_once("::").unwrap().1;
                if $crate::alone::can_run(name, $on) {
                    $crate::alone::run(name, &[$(($variable, $value)),*]);
                }
            }

            $(#[$doc])*
            #[test]
            #[ignore = "run by its neighbour"]
            fn inside() $body
        }
    };
}
pub(crate) use in_its_own_process;
