//! Calls in both directions: functions of libraries as worker functions, and worker functions as functions of the C
//! ABI.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Weak;
use std::thread::{self, ThreadId};
use std::{process, ptr, slice};

use disco_core::error::causes;
use disco_core::function::{Args, BoxError, Function};
use disco_core::tensor::Storage;
use disco_core::{Error, Object, WorkerContext};
use smallvec::SmallVec;

use crate::abi::{self, FunctionCell, SafeCall, TypeIndex};
use crate::current;
use crate::decode::Decoder;
use crate::encode;
use crate::foreign::Keep;
use crate::heap;
use crate::library::TvmFfi;
use crate::raised::Raised;
use crate::raw;
use crate::stream;
use crate::value::Any;

/// The kind of errors that worker functions raise into libraries.
const KIND: &str = "DiscoError";

/// A function of a library.
pub(crate) struct Callee {
    safe_call: SafeCall,
    /// The first argument of the entry: the function object, or null for an exported symbol.
    handle: *mut c_void,
    /// The function object; nothing for an exported symbol.
    any: Any,
    keep: Keep,
}

impl Callee {
    /// An entry that a library exports.
    ///
    /// # Safety
    /// `safe_call` is an entry of this type, and `keep` keeps it in the process.
    pub(crate) unsafe fn exported(safe_call: SafeCall, keep: Keep) -> Self {
        Self { safe_call, handle: ptr::null_mut(), any: Any::NONE, keep }
    }

    /// As a worker function.
    pub(crate) fn into_function(self, name: &str) -> Function {
        Function::with_inner(name, Rc::new(self), call)
    }
}

/// A worker function of a function object, which is not a null object. `name` is used in errors.
pub(crate) fn named(name: &str, any: Any, keep: &Keep) -> Function {
    // SAFETY: only this module makes functions with this content.
    let own = unsafe { heap::as_function::<Exported>(&any) }.and_then(Exported::function);
    if let Some(function) = own {
        return function.clone();
    }
    // SAFETY: function objects have a function cell.
    let cell = unsafe { any.cell::<FunctionCell>(TypeIndex::FUNCTION) }.copied();
    let Some(cell) = cell else {
        let name = name.to_owned();
        return Function::new(name, |_, _| Err(Error::invalid("the library's object is no function").into()));
    };
    Callee { safe_call: cell.safe_call, handle: any.as_raw().pointer(), any, keep: keep.clone() }.into_function(name)
}

fn import(any: Any, keep: &Keep) -> Function {
    named("<a function of a library>", any, keep)
}

/// Calls a function of a library on the thread of its worker.
fn call(callee: &Rc<Callee>, ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
    let mut packed: SmallVec<[Any; 6]> = SmallVec::with_capacity(args.len());
    for index in 0..args.len() {
        let encoded = encode::argument(args.arg(index)?, export);
        packed.push(encoded.map_err(|found| Error::Argument {
            index,
            expected: "a value that libraries take",
            found,
        })?);
    }
    let _stream = stream::enter(ctx);
    let lent = current::lend(ctx);
    // SAFETY: the entry is in the process as long as `callee`, with its handle.
    let result = unsafe { raw::invoke(callee.safe_call, callee.handle, &packed) };
    drop(lent);
    let result = result.map_err(original)?;
    Decoder::new(&callee.keep, import)
        .owned(result)
        .map_err(|found| Error::protocol(format!("the library's function returned {found}")).into())
}

thread_local! {
    /// The last error that a worker function raised into a library, with its text.
    static FAILED: RefCell<Option<(String, BoxError)>> = const { RefCell::new(None) };
}

/// The error of a worker function, if `raised` is that error on its way back; otherwise the library's own.
#[cold]
fn original(raised: Raised) -> BoxError {
    match FAILED.take() {
        Some((text, error)) if raised.kind == KIND && raised.message.contains(&text) => error,
        _ => raised.into(),
    }
}

/// The content of a function object that calls a worker function.
enum Exported {
    /// A function that stays on its worker's thread. It is leaked if a library drops it on another thread.
    Bound { function: Option<Function>, thread: ThreadId },
    /// A function for any worker.
    Free { name: &'static str, call: Free },
}

/// A worker function that is no closure, so that any worker may call it.
pub(crate) type Free = fn(&mut WorkerContext, &Args<'_>) -> Result<Object, BoxError>;

impl Exported {
    fn name(&self) -> &str {
        match self {
            Self::Bound { function, .. } => function.as_ref().map_or("", Function::name),
            Self::Free { name, .. } => name,
        }
    }

    /// The worker function, on the thread of its worker.
    fn function(&self) -> Option<&Function> {
        match self {
            Self::Bound { function, thread } if *thread == thread::current().id() => function.as_ref(),
            _ => None,
        }
    }

    /// Calls the function with the context of the worker whose call of a library is running on this thread; none if
    /// there is no such worker, or if the function is another worker's.
    fn call(&self, args: &Args<'_>) -> Option<Result<Object, BoxError>> {
        if let Self::Free { call, .. } = self {
            return current::with(|ctx| call(ctx, args));
        }
        let function = self.function()?;
        current::with(|ctx| function.call(ctx, args))
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if let Self::Bound { function, thread } = self
            && *thread != thread::current().id()
        {
            std::mem::forget(function.take());
        }
    }
}

/// A function object that calls a worker function with the context of the calling worker.
pub(crate) fn export(function: &Function) -> Any {
    if let Some(callee) = function.downcast::<Callee>()
        && callee.any.header().is_some()
    {
        return callee.any.clone();
    }
    let bound = Exported::Bound { function: Some(function.clone()), thread: thread::current().id() };
    heap::function(call_worker_function, bound)
}

/// As [`export`], for a function that any worker may call.
pub(crate) fn export_free(name: &'static str, call: Free) -> Any {
    heap::function(call_worker_function, Exported::Free { name, call })
}

/// The entry of [`export`]'s objects.
unsafe extern "C-unwind" fn call_worker_function(
    object: *mut c_void,
    args: *const abi::Any,
    count: c_int,
    result: *mut abi::Any,
) -> c_int {
    // SAFETY: `export` has made the object, and the caller has a reference to it.
    let exported = unsafe { heap::of_function::<Exported>(object) };
    let outside = || {
        let name = exported.name();
        Err(Error::state(format!("{name}: a library called this worker function outside of a call of its worker"))
            .into())
    };
    let run = |args: &[Object]| exported.call(&Args::of_objects(args)).unwrap_or_else(outside);
    // SAFETY: passed on.
    unsafe { answer(args, count, result, run, raise_of_worker) }
}

/// Answers a call from a library: converts the arguments, runs `work`, and converts its result, error or panic. An
/// error is passed to `raise`, whose value is the result.
///
/// # Safety
/// The arguments are valid values of the C ABI during the call, and `result` is a variable for the result.
pub(crate) unsafe fn answer(
    args: *const abi::Any,
    count: c_int,
    result: *mut abi::Any,
    work: impl FnOnce(&[Object]) -> Result<Object, BoxError>,
    raise: fn(BoxError) -> Any,
) -> c_int {
    let args = match count {
        ..=0 => &[],
        // SAFETY: the caller passes `count` arguments.
        count => unsafe { slice::from_raw_parts(args, count as usize) },
    };
    let mut lent = Vec::new();
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: passed on; `end_lending` below ends the process if a storage outlives the call.
        let objects = unsafe { decode_all(args, &mut lent) }?;
        encode_result(&work(&objects)?, &lent)
    }));
    let answered = answered.unwrap_or_else(|panic| Err(panicked(&*panic).into()));
    end_lending(&lent);
    let (code, returned) = match answered {
        Ok(returned) => (0, returned),
        Err(error) => (-1, raise(error)),
    };
    // SAFETY: the caller passes a variable for the result, which holds nothing that needs a drop.
    unsafe { result.write(returned.into_raw()) };
    code
}

/// Converts the arguments of a call from a library.
///
/// # Safety
/// As [`Decoder::lent`].
unsafe fn decode_all(args: &[abi::Any], lent: &mut Vec<Weak<Storage>>) -> Result<SmallVec<[Object; 6]>, BoxError> {
    let mut objects = SmallVec::with_capacity(args.len());
    for (index, arg) in args.iter().enumerate() {
        // SAFETY: passed on.
        let object = unsafe { Decoder::new(&None, import).lent(arg, lent) };
        objects.push(object.map_err(|found| Error::Argument { index, expected: "a value that Disco takes", found })?);
    }
    Ok(objects)
}

/// Converts a result for a library, unless it has a tensor that the library only `lent`.
fn encode_result(returned: &Object, lent: &[Weak<Storage>]) -> Result<Any, BoxError> {
    let mut is_lent = false;
    if let Object::Value(value) = returned
        && !lent.is_empty()
    {
        value.visit_tensors(&mut |tensor| {
            is_lent |= lent.iter().any(|lent| lent.as_ptr() == &raw const **tensor.storage())
        });
    }
    if is_lent {
        let text = "the function returned a tensor that its caller only lends; return a copy, or pass an owned tensor";
        return Err(Error::invalid(text).into());
    }
    let encoded = encode::object(returned, export);
    encoded
        .map_err(|found| Error::invalid(format!("the function returned {found}, which libraries do not take")).into())
}

/// Raises the error of a worker function, and keeps it for the end of the call that the worker has made.
fn raise_of_worker(error: BoxError) -> Any {
    let (raised, text) = raise(KIND, &error);
    FAILED.set(Some((text, error)));
    raised
}

/// Raises the error of a function of this library.
pub(crate) fn raise_of_library(error: BoxError) -> Any {
    let is_argument = matches!(error.downcast_ref(), Some(Error::Argument { .. } | Error::ArgumentCount { .. }));
    raise(if is_argument { "TypeError" } else { "RuntimeError" }, &error).0
}

/// Raises an error, with `kind` if it has none of its own, and returns its text. Without libtvm_ffi, the error is the
/// value for the caller's result variable.
fn raise(kind: &str, error: &BoxError) -> (Any, String) {
    let (kind, text) = match error.downcast_ref::<Raised>() {
        Some(raised) => (&*raised.kind, raised.message.clone()),
        None => {
            let texts: Vec<_> = std::iter::once(error.to_string()).chain(causes(&**error)).collect();
            (kind, texts.join(": "))
        }
    };
    match TvmFfi::present() {
        Some(tvm) => {
            tvm.raise(kind, &text);
            (Any::NONE, text)
        }
        None => (heap::error(kind, &text), text),
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    Error::state(format!("panicked: {}", text.as_deref().unwrap_or("without a message")))
}

/// Ends the process if a tensor that the caller only lent is still in use: its memory is invalid after the call.
fn end_lending(lent: &[Weak<Storage>]) {
    if lent.iter().any(|storage| storage.strong_count() > 0) {
        eprintln!("disco: a function kept a tensor that its caller only lent (DLTensor *), so the process ends");
        process::abort();
    }
}
