//! Shared libraries on Disco's workers: functions of the TVM-FFI C ABI, which C, C++, Rust, Triton and TVM produce.
//!
//! ```no_run
//! use disco_core::{Result, Session};
//! use disco_ffi::Module;
//!
//! async fn run(session: &dyn Session) -> Result<Vec<f64>> {
//!     let module = Module::load(session, "./libkernels.so").await?;
//!     // The symbol `__tvm_ffi_add` of the library.
//!     let add = module.function(session, "add").await?;
//!     let sum = session.call(&add, (1.5, 2.0)).await?;
//!     session.get_all(&sum).await
//! }
//! ```
//!
//! | file | content |
//! |---|---|
//! | `session.rs` | [`Module`]: libraries and models on all workers, for the controller |
//! | `worker.rs` | the worker functions behind it |
//! | `open.rs`, `elf.rs`, `shared.rs` | opening of libraries, [`SharedLibrary`] |
//! | `lookup.rs` | functions by name; [`register_global`] for functions that libraries call |
//! | `call.rs`, `raw.rs`, `stream.rs` | calls in both directions |
//! | `current.rs` | the worker's context during a call, for functions that a library calls back |
//! | `encode.rs`, `decode.rs` | values of Disco to values of the ABI, and back |
//! | `heap.rs` | the ABI's objects, allocated without a library |
//! | `value.rs`, `foreign.rs` | [`Any`], an owned value of the ABI; [`ForeignObject`], such a value in a register |
//! | `export.rs` | [`export_function!`]: functions of a Rust library for Disco, Python and other callers |
//! | `raised.rs` | [`Raised`]: errors of functions of libraries |
//! | `library.rs`, `table.rs` | [`TvmFfi`]: libtvm_ffi, found at run time |
//! | `models/` | [`Weights`]: their weights on all workers, and the worker functions behind both |
//! | `vm.rs`, `tvm_runtime.rs` | Relax virtual machines; libtvm_runtime, found at run time |
//! | `runtime/` | `runtime.disco.*`, the functions that compiled models call |
//! | `shards/` | [`ShardLoader`]: weights in `tensor-cache.json` |
//! | [`abi`] | layouts and numbers |
//!
//! # Invariants
//! - `disco-ffi` allocates the objects of the TVM-FFI C ABI itself, with the layouts and counts of libtvm_ffi
//!   (`heap.rs`). So a library that needs no symbol of libtvm_ffi works without it, and a call with plain values,
//!   strings or tensors allocates at most one block for each argument. Only maps, modules, global functions and
//!   raised errors need libtvm_ffi.
//! - libtvm_ffi is opened with global symbols, before the library that needs it: otherwise the first error that
//!   compiled code raises ends the process. From then on, libraries are opened as its modules, of which a process has
//!   one for each file, because the library stores the address of its module.
//! - An error is raised in libtvm_ffi if it is in the process. Otherwise, the callee leaves an error object in the
//!   result. Callers of `disco-ffi` read both.
//! - An error of a worker function that a library has called is kept on the thread. If it comes back through the
//!   library, the worker's failure is that error, so its kind and the cause of an abort survive.
//! - The context of a worker is lent to callbacks by a thread-local pointer, which a callback takes out for its own
//!   time. So there are never two mutable references.
//! - Functions, tensors and objects of a library keep it open. A `Function` stays on its worker's thread: if a
//!   library drops its function object on another thread, the function is leaked.
//! - A tensor without an owner (`DLTensor *`) is valid during the call only. The process ends if a function keeps it,
//!   because safe code could use freed memory.
//! - Calls are `extern "C-unwind"`. A C++ exception that reaches Rust ends the process, in a defined way; functions
//!   of libtvm_ffi catch `std::exception`.

#![doc(html_root_url = "https://docs.rs/disco-ffi/latest")]

pub mod abi;
mod call;
pub mod current;
mod decode;
mod elf;
mod encode;
mod export;
mod foreign;
mod heap;
mod library;
mod lookup;
mod models;
mod open;
mod raised;
mod raw;
mod runtime;
mod session;
mod shards;
mod shared;
mod stream;
mod table;
mod tvm_runtime;
mod value;
mod vm;
mod worker;

pub use export::ExportedFunction;
#[doc(hidden)]
pub use export::call_exported;
pub use foreign::ForeignObject;
pub use library::TvmFfi;
pub use lookup::{global_function, register_global};
pub use models::Weights;
pub use open::{open, open_sent};
pub use raised::Raised;
pub use runtime::register_runtime;
pub use session::{LibraryFile, Module};
pub use shards::{ShardLoader, Shards};
pub use shared::SharedLibrary;
pub use value::Any;
