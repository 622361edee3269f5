//! Disco's sessions from Python: the module `disco._disco`, on which the package `disco` in `python/` stands.
//!
//! ```text
//! controller      session ── reference ── core     calls return handles; operation: waits, with Ctrl-C, limits and asyncio
//!                 options, mesh     of a session; results of running calls; saved: checkpoints, and libraries of the workers;
//!                                models: files and texts of language models
//! worker          functions ── context ── communicator     runs Python functions; their view of the worker, which access
//!                                lends; collectives and objects run operations, and work is a started one; store; a desk
//!                                lends the worker to other threads of its process, by jobs
//! both            values, tensor            Python objects as values of commands, arrays without a copy; errors
//! ```
//!
//! # The interpreter's lock
//! - Only `lock` attaches to the interpreter, and only for the threads of workers, which run Python functions, and for drops
//!   on threads that have it already; no lane, no reactor and no heartbeat does (a lint refuses `Python::attach` elsewhere).
//! - No wait holds the lock: waits and collectives detach.
//! - Objects that a thread without the lock drops are freed when a thread takes it next. A handle that is dropped frees its
//!   register without the lock.

mod access;
mod arrays;
mod collectives;
mod communicator;
mod context;
mod core;
mod desk;
mod dtype;
mod errors;
mod forks;
mod functions;
mod interrupts;
mod jobs;
mod lock;
mod mesh;
mod models;
mod objects;
mod operation;
mod options;
mod outcome;
mod reference;
mod results;
mod saved;
mod serve;
mod session;
mod shapes;
mod store;
mod tensor;
mod values;
mod work;

use pyo3::prelude::*;

/// The native part of `disco`.
#[pymodule]
fn _disco(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Libraries of vendors that pip has installed beside this package are found without an active environment.
    disco_dl::python::set_own_environment(module.py().import("sys")?.getattr("prefix")?.extract()?);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<context::Context>()?;
    module.add_class::<desk::Desk>()?;
    module.add_class::<errors::NativeError>()?;
    module.add_class::<serve::Invitations>()?;
    module.add_class::<mesh::Mesh>()?;
    module.add_class::<models::ModelFiles>()?;
    module.add_class::<models::TextOfTokens>()?;
    module.add_class::<operation::Operation>()?;
    module.add_class::<operation::Waits>()?;
    module.add_class::<reference::Part>()?;
    module.add_class::<reference::Ref>()?;
    module.add_class::<results::Results>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<work::Work>()?;
    module.add_function(wrap_pyfunction!(serve::serve, module)?)?;
    module.add_function(wrap_pyfunction!(serve::init, module)?)?;
    module.add_function(wrap_pyfunction!(serve::serve_invitation, module)?)?;
    module.add_function(wrap_pyfunction!(serve::is_server, module)?)?;
    module.add_function(wrap_pyfunction!(serve::backends, module)?)?;
    module.add_function(wrap_pyfunction!(serve::processors, module)?)?;
    module.add_function(wrap_pyfunction!(serve::set_worker_program, module)?)?;
    module.add_function(wrap_pyfunction!(serve::function_names, module)?)?;
    module.add_function(wrap_pyfunction!(forks::note_fork, module)?)?;
    Ok(())
}
