//! A library for Disco's workers. A session loads it while it runs: `Module::load(&session, "libdisco_ffi_library.so")`.
//! Python loads it with `tvm_ffi.load_module`. The chapter "Libraries" of Disco's guide explains both.

use disco_core::{Error, Result, Tensor, Value};
use disco_ffi::{Raised, export_function};

export_function!(add, add);
export_function!(scale, scale);
export_function!(describe, describe);
export_function!(root, root);
export_function!(panic, panic_with);

fn add(a: i64, b: i64) -> Result<i64> {
    a.checked_add(b).ok_or_else(|| Error::invalid(format!("{a} + {b} does not fit in 64 bits")))
}

/// Multiplies the elements in place: the caller's tensor changes.
fn scale(x: Tensor, by: f64) -> Result<Tensor> {
    x.view_mut::<f64>()?.iter_mut().for_each(|x| *x *= by);
    Ok(x)
}

fn describe(values: Vec<Value>) -> Result<String> {
    let texts: Vec<_> = values.iter().map(|value| format!("{} {value}", value.kind())).collect();
    Ok(texts.join("; "))
}

/// The kind of the error is that of Python's exception.
fn root(x: f64) -> Result<f64, Raised> {
    if x >= 0.0 { Ok(x.sqrt()) } else { Err(Raised::new("ValueError", format!("{x} has no square root"))) }
}

/// A panic becomes an error of the caller.
fn panic_with(text: String) -> Result<()> {
    panic!("{text}")
}
