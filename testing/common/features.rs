//! The features and the environment of the gate's builds, and of tests that build examples, so that they find everything
//! built.

use std::env;
use std::ffi::OsStr;
use std::process::Command;

/// Cargo's option for all features of all packages, except those that need the CUDA toolkit. A test of
/// `steps` compares this with the manifests.
pub const ALL_FEATURES: &str = "--features disco-core/metrics,disco-core/ndarray,disco-core/serde,disco-engine/nodes,disco-channel/nodes,disco-channel/tvm,disco-models/hub,disco-nccl/cuda-bindings,disco-tcp/metrics,\
    disco-runtime/candle,disco-runtime/checkpoint,disco-runtime/ffi,disco-runtime/local,disco-runtime/metrics,disco-runtime/models,disco-runtime/mpi,disco-runtime/nccl,disco-runtime/nccl-without-bindings,\
    disco-runtime/ndarray,disco-runtime/nodes,disco-runtime/rccl,disco-runtime/serde,disco-runtime/tcp,disco-runtime/trace,disco-runtime/tvm,disco-trace/analysis,disco-runtime-cli/local,disco-runtime-cli/mpi,\
    disco-runtime-cli/nccl,disco-runtime-cli/nodes,disco-runtime-cli/rccl,disco-runtime-cli/tcp,disco-serve/otlp,disco-benches/metrics,disco-benches/nccl";

/// A command of cargo without the variables of the package whose program calls it: if these change, build scripts such as
/// that of `ring` run again.
pub fn cargo(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let is_of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| is_of_package(name));
    names.for_each(|name| _ = command.env_remove(name));
    command
}
