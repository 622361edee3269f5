//! The backend `nccl` on a test double of NCCL and of the CUDA driver, through the loaders that programs use. What the double can't
//! show stands in its documentation: nothing here has met a GPU.
//!
//! Each test runs in a process of its own, whose environment says what the double does: [`on_the_double!`] writes two of a test, one
//! that starts the process, and one that runs in it.

#![cfg(all(feature = "nccl", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod allocations;
mod alone;
mod costs;
mod devices;
mod failure;
mod kernels;
mod memory;
mod one_device;
mod order;
mod overlap;
mod p2p;
mod processes;

/// A test that runs in a process of its own, with these variables.
macro_rules! on_the_double {
    ($(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "as the test needs")]
            use super::*;

            #[test]
            fn in_a_process_of_its_own() {
                let name = concat!(module_path!(), "::inside");
                let name = name.split_once("::").unwrap().1;
                $crate::alone::run(name, &[$(($variable, $value)),*]);
            }

            $(#[$doc])*
            #[test]
            #[ignore = "run by its neighbour"]
            fn inside() $body
        }
    };
}
pub(crate) use on_the_double;
