//! The backends `nccl`, `rccl` and `cuda_p2p` on a test double of the libraries, which the programs' own loaders load.
//! The documentation of the double lists what it can't show.
//!
//! Each test runs in its own process, whose environment configures the double: [`on_the_double!`] expands to two tests,
//! one that starts the process and one that runs in it. With `DISCO_TEST_GPU=1`, the tests of
//! [`on_the_double_or_a_gpu!`], and those of `processes` that need no fault of the double, run on this machine's GPUs;
//! one is enough. The other tests are skipped and print why (see with `--nocapture`).

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod allocations;
mod alone;
mod copies;
mod costs;
mod device_times;
mod devices;
mod failure;
mod graph_ends;
mod graph_refusals;
mod graphs;
mod kernels;
mod libraries;
mod memory;
mod one_device;
mod order;
mod overlap;
#[path = "../own_process/mod.rs"]
mod own_process;
mod p2p;
mod pinned;
mod processes;
mod random_copies;
mod user_streams;
mod waits;

/// A test that runs in its own process with these variables. `DISCO_TEST_GPU=1` skips it, because only the double can
/// show it.
macro_rules! on_the_double {
    ($(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        $crate::in_its_own_process! { $crate::alone::On::Double, $(#[$doc])* $name, [$($variable = $value),*], $body }
    };
}
pub(crate) use on_the_double;

/// A test that runs in its own process with these variables, on the double, or with `DISCO_TEST_GPU=1` on a GPU.
macro_rules! on_the_double_or_a_gpu {
    ($(#[$doc:meta])* $name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        $crate::in_its_own_process! { $crate::alone::On::Either, $(#[$doc])* $name, [$($variable = $value),*], $body }
    };
}
pub(crate) use on_the_double_or_a_gpu;

/// A test [`on_the_double!`] whose devices are all connected, with the double's NVRTC: `cuda_p2p` launches kernels. It is
/// skipped where NVRTC is missing.
macro_rules! with_kernels {
    ($name:ident, [$($variable:literal = $value:expr),* $(,)?], $body:block) => {
        $crate::on_the_double!(
            $name,
            [
                "DISCO_P2P_TOPOLOGY" = "fully_connected",
                "DISCO_NVRTC_LIBRARY" = &$crate::alone::nvrtc_of_the_double(),
                $($variable = $value),*
            ],
            {
                if $crate::alone::has_nvrtc() $body
            }
        );
    };
}
pub(crate) use with_kernels;

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
            #[ignore = "run by the test beside it in another process"]
            fn inside() $body
        }
    };
}
pub(crate) use in_its_own_process;
