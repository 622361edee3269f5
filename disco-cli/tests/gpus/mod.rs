//! The `disco` command on the test double of the libraries of GPUs.

mod double;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "rccl")]
mod rccl;
#[cfg(feature = "nccl")]
mod topo;

/// The tests of all files of this module.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, fn())> {
    let tests = [
        #[cfg(feature = "nccl")]
        nccl::tests(),
        #[cfg(feature = "rccl")]
        rccl::tests(),
        #[cfg(feature = "nccl")]
        topo::tests(),
    ];
    tests.into_iter().flatten()
}
