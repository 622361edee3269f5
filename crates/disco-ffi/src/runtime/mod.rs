//! The functions that models compiled by TVM call: `runtime.disco.*`.
//!
//! A call is made on the thread of a worker, inside of a call of a library, and uses that worker's communicator,
//! whichever backend it is. Tensors are used in place. TVM documents the functions in `src/runtime/extra/disco/
//! builtin.cc`; the reductions of `allreduce` are numbered sum 0, prod 1, min 2, max 3, avg 4.

mod arguments;
mod collective;
mod loader;
mod worker;

use std::sync::OnceLock;

use disco_core::function::{Args, BoxError};
use disco_core::{Error, Object, Result, WorkerContext};

use crate::call::Free;
use crate::library::TvmFfi;
use crate::lookup::register_global;

/// A function of the table.
struct Entry {
    name: &'static str,
    /// The entry that libtvm_ffi gets; it calls the function of the row with a checked number of arguments.
    call: Free,
}

/// A failure of a function of the table. The kind of the error is that of its source.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}")]
struct Failed {
    name: &'static str,
    source: BoxError,
}

/// Makes the table from one row per function: its name, its number of arguments, and the function.
macro_rules! functions {
    ($($(#[doc = $doc:literal])* $name:literal($count:literal) => $function:path;)*) => {
        const FUNCTIONS: [Entry; [$($name),*].len()] = [$(Entry {
            name: concat!("runtime.disco.", $name),
            call: |ctx, args| checked(concat!("runtime.disco.", $name), $count, $function, ctx, args),
        }),*];
    };
}

functions! {
    /// `(src, kind: Shape, in_group, dst)`
    "allreduce"(4) => collective::all_reduce;
    /// `(src, in_group, dst)`
    "allgather"(3) => collective::all_gather;
    /// `(src, in_group, dst)`
    "broadcast_from_worker0"(3) => collective::broadcast_from_worker_0;
    /// `(src or None, in_group, dst)`
    "scatter_from_worker0"(3) => collective::scatter_from_worker_0;
    /// `(src, in_group, dst or None)`
    "gather_to_worker0"(3) => collective::gather_to_worker_0;
    /// `(tensor)`
    "recv_from_worker0"(1) => collective::recv_from_worker_0;
    /// `(tensor)`
    "send_to_next_group"(1) => collective::send_to_next_group;
    /// `(tensor)`
    "recv_from_prev_group"(1) => collective::recv_from_prev_group;
    /// `(tensor, worker)`
    "send_to_worker"(2) => collective::send_to_worker;
    /// `(tensor, worker)`
    "recv_from_worker"(2) => collective::recv_from_worker;
    /// `() -> Shape`
    "worker_id"(0) => worker::id;
    /// `() -> int`
    "worker_rank"(0) => worker::rank;
    /// `() -> int`
    "world_size"(0) => worker::world_size;
    /// `() -> Device`
    "device"(0) => worker::device;
    /// `(shape, dtype, device or None, worker0_only, in_group) -> Tensor or None`
    "empty"(5) => worker::empty;
    /// `(cpu of each worker: Shape)`
    "bind_worker_to_cpu_core"(1) => worker::bind_to_cpu;
    /// `(path, device or None) -> Module`
    "load_vm_module"(2) => worker::load_vm_module;
    /// `(path, metadata, shard info, module or None) -> loader`
    "ShardLoader"(4) => loader::create;
    /// `(loader, parameter: Shape) -> Tensor`
    "ShardLoaderLoad"(2) => loader::load;
    /// `(loader, parameter: Shape) -> Tensor`
    "ShardLoaderLoadPresharded"(2) => loader::load_presharded;
    /// `(loader) -> array of tensors`
    "ShardLoaderLoadAll"(1) => loader::load_all;
    /// `(loader) -> array of tensors`
    "ShardLoaderLoadAllPresharded"(1) => loader::load_all_presharded;
    /// `(loader, parameter: Shape) -> Tensor`
    "ShardLoaderLoadParamOnWorker0"(2) => loader::load_on_worker_0;
}

fn checked(
    name: &'static str,
    expected: usize,
    function: Free,
    ctx: &mut WorkerContext,
    args: &Args<'_>,
) -> Result<Object, BoxError> {
    let called = match args.len() {
        found if found == expected => function(ctx, args),
        found => Err(Error::ArgumentCount { expected, found }.into()),
    };
    called.map_err(|source| Failed { name, source }.into())
}

/// Registers the functions with libtvm_ffi, in place of TVM's own, once per process. If the process opens TVM's
/// `libtvm_runtime_extra.so`, that must happen before: TVM refuses names that exist.
///
/// # Errors
/// libtvm_ffi is not there, or refuses a function.
pub fn register_runtime() -> Result<()> {
    static REGISTERED: OnceLock<Result<()>> = OnceLock::new();
    let register = || FUNCTIONS.iter().try_for_each(|entry| register_global(entry.name, entry.call));
    REGISTERED.get_or_init(register).clone()
}

/// As [`register_runtime`], if this process has opened libtvm_ffi. Libraries that call the functions have opened it.
///
/// # Errors
/// libtvm_ffi refuses a function.
pub(crate) fn register_if_in_use() -> Result<()> {
    if TvmFfi::opened().is_some() { register_runtime() } else { Ok(()) }
}
