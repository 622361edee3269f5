//! Models that TVM has compiled: a Relax virtual machine for each worker.

use std::path::Path;

use disco_core::function::{Args, Function, IntoObject as _};
use disco_core::{Device, Error, Object, Opaque, Result, WorkerContext};

use crate::foreign::ForeignObject;
use crate::{open, tvm_runtime};

/// Makes a virtual machine from its executable.
const LOAD_EXECUTABLE: &str = "vm_load_executable";
/// Gives a virtual machine its devices and allocators.
const INITIALIZE: &str = "vm_initialization";

/// TVM's allocator that keeps freed memory for later tensors.
const POOLED: i64 = 2;
const CPU: (i64, i64) = (1, 0);

/// Opens a compiled model and makes a virtual machine for this worker, on `device` or else on the worker's. The
/// machine has state, so each worker has its own; workers of one process share the library. A library without Relax
/// functions is returned as it is.
///
/// # Errors
/// libtvm_ffi or libtvm_runtime is not there; errors of [`open::open`]; the library refuses the device.
pub(crate) fn load(ctx: &mut WorkerContext, path: &Path, device: Option<Device>) -> Result<Object> {
    let device = device.unwrap_or_else(|| ctx.device());
    let missing = tvm_runtime::open().err();
    let library = open::open(path).map_err(|error| match &missing {
        Some(missing) => Error::missing(format!("{error}; a compiled model needs libtvm_runtime, but {missing}")),
        None => error,
    })?;
    let Some(load_executable) = library.find(LOAD_EXECUTABLE)? else {
        return Ok(Opaque::new(library).into_object());
    };
    let machine = call(ctx, &load_executable, &[])?;
    let Some(machine) = machine_of(&machine) else {
        let text = format!("{}: `{LOAD_EXECUTABLE}` returned {}, not a module", library.name(), machine.kind());
        return Err(Error::protocol(text));
    };
    let machine = machine.kept_by(library.keep());
    let (kind, ordinal) = (i64::from(device.kind.dlpack()), i64::from(device.ordinal));
    // Strings and shapes are on the host, so its allocator is always given.
    let settings = [kind, ordinal, POOLED, CPU.0, CPU.1, POOLED].map(i64::into_object);
    call(ctx, &machine.function(INITIALIZE)?, &settings)?;
    Ok(Opaque::new(machine).into_object())
}

fn call(ctx: &mut WorkerContext, function: &Function, args: &[Object]) -> Result<Object> {
    let called = function.call(ctx, &Args::of_objects(args));
    called.map_err(|error| Error::missing(format!("{}: {error}", function.name())))
}

fn machine_of(object: &Object) -> Option<std::rc::Rc<ForeignObject>> {
    match object {
        Object::Opaque(opaque) => opaque.downcast::<ForeignObject>().filter(|object| object.is_module()),
        _ => None,
    }
}
