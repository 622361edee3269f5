//! The features that the gate builds at once.

/// Cargo's option for all features of all packages, except those that need the CUDA toolkit. A test of
/// [`steps`](crate::steps) compares this with the manifests.
pub(crate) const ALL_FEATURES: &str = "--features disco-core/metrics,disco-core/ndarray,disco-core/serde,disco-nccl/cuda-bindings,\
    disco-runtime/candle,disco-runtime/checkpoint,disco-runtime/ffi,disco-runtime/local,disco-runtime/metrics,disco-runtime/mpi,disco-runtime/nccl,disco-runtime/nccl-without-bindings,\
    disco-runtime/ndarray,disco-runtime/rccl,disco-runtime/serde,disco-runtime/trace,disco-runtime-cli/local,disco-runtime-cli/mpi,\
    disco-runtime-cli/nccl,disco-runtime-cli/rccl,disco-benches/metrics,disco-benches/mpi,disco-benches/nccl";
