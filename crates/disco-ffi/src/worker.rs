//! The worker functions behind [`Module`](crate::Module).

use std::path::Path;
use std::sync::Arc;

use disco_core::function::Function;
use disco_core::{Object, Opaque, Result, WorkerContext, register_function};

use crate::{lookup, open, runtime};

/// Names of the worker functions.
pub(crate) mod name {
    /// `(path)`: opens a library of this machine.
    pub(crate) const LOAD: &str = "ffi.load_library";
    /// `(name, bytes)`: opens a library that was sent.
    pub(crate) const LOAD_SENT: &str = "ffi.load_sent_library";
    /// `(library or module, name)`: a function.
    pub(crate) const FUNCTION: &str = "ffi.function";
    /// `(name)`: a global function.
    pub(crate) const GLOBAL: &str = "ffi.global_function";
}

register_function!(name::LOAD, load);
register_function!(name::LOAD_SENT, load_sent);
register_function!(name::FUNCTION, function);
register_function!(name::GLOBAL, global);

fn load(_: &mut WorkerContext, path: String) -> Result<Opaque> {
    let library = open::open(Path::new(&path))?;
    runtime::register_if_in_use()?;
    Ok(Opaque::new(library))
}

fn load_sent(_: &mut WorkerContext, name: String, bytes: Arc<[u8]>) -> Result<Opaque> {
    let library = open::open_sent(&name, &bytes)?;
    runtime::register_if_in_use()?;
    Ok(Opaque::new(library))
}

fn function(_: &mut WorkerContext, module: Object, name: String) -> Result<Function> {
    lookup::function_of(&module, &name)
}

fn global(_: &mut WorkerContext, name: String) -> Result<Function> {
    lookup::global_function(&name)
}
