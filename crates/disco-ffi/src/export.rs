//! Functions of a Rust library as functions of the C ABI.

#![allow(unsafe_code)]

use std::ffi::c_int;

use disco_core::function::{Args, BoxError, FromArg, IntoObject};
use disco_core::{Error, Object};

use crate::abi::Any;
use crate::call;

/// A Rust function that [`export_function!`](crate::export_function) can export. `A` is the tuple of its argument
/// types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be exported",
    label = "not a function for a library",
    note = "an exported function is `fn(..) -> Result<T, E>` with up to eight arguments that implement `FromArg`; `T` implements `IntoObject`, and `E` converts to `Box<dyn Error + Send + Sync>`"
)]
pub trait ExportedFunction<A> {
    /// Converts the arguments, calls the function, converts its result.
    ///
    /// # Errors
    /// The arguments do not fit, or the function fails.
    fn call(&self, args: &Args<'_>) -> Result<Object, BoxError>;
}

macro_rules! exported_function {
    ($($arg:ident $index:literal),*) => {
        impl<F, R, E, $($arg),*> ExportedFunction<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Result<R, E>,
            R: IntoObject,
            E: Into<BoxError>,
            $($arg: FromArg,)*
        {
            fn call(&self, args: &Args<'_>) -> Result<Object, BoxError> {
                let expected = <[usize]>::len(&[$($index),*]);
                if args.len() != expected {
                    return Err(Error::ArgumentCount { expected, found: args.len() }.into());
                }
                self($(args.take::<$arg>($index)?),*).map_err(E::into).and_then(R::try_into_object)
            }
        }
    };
}

exported_function!();
exported_function!(A 0);
exported_function!(A 0, B 1);
exported_function!(A 0, B 1, C 2);
exported_function!(A 0, B 1, C 2, D 3);
exported_function!(A 0, B 1, C 2, D 3, E1 4);
exported_function!(A 0, B 1, C 2, D 3, E1 4, G 5);
exported_function!(A 0, B 1, C 2, D 3, E1 4, G 5, H 6);
exported_function!(A 0, B 1, C 2, D 3, E1 4, G 5, H 6, I 7);

/// Exports a Rust function from a `cdylib` under a name of the TVM-FFI C ABI. Disco's workers call it by
/// [`Module::function`](crate::Module::function), and other programs through `tvm_ffi`, for example Python:
/// `tvm_ffi.load_module("libmine.so").add(1, 2)`. Neither the library nor Disco needs libtvm_ffi for that.
///
/// The function takes up to eight arguments and returns a `Result`, with the types that worker functions take and
/// return, but no context. Its error is raised: a [`Raised`](crate::Raised) with its own kind, a wrong argument as
/// `TypeError`, and any other error, or a panic, as `RuntimeError`. A tensor shares its elements with the caller. If the
/// caller only lends it (`DLTensor *`), it is invalid after the call, and the process ends if it is kept.
///
/// ```
/// use disco_core::{Result, Tensor};
///
/// fn scale(x: Tensor, by: f64) -> Result<Tensor> {
///     x.view_mut::<f64>()?.iter_mut().for_each(|x| *x *= by);
///     Ok(x)
/// }
///
/// disco_ffi::export_function!(scale, scale);
/// ```
#[macro_export]
macro_rules! export_function {
    ($name:ident, $function:path) => {
        const _: () = {
            #[allow(unsafe_code, reason = "the symbol's name is reserved for functions of this type")]
            #[unsafe(export_name = ::std::concat!("__tvm_ffi_", ::std::stringify!($name)))]
            unsafe extern "C" fn exported(
                _: *mut ::std::ffi::c_void,
                args: *const $crate::abi::Any,
                count: ::std::ffi::c_int,
                result: *mut $crate::abi::Any,
            ) -> ::std::ffi::c_int {
                // SAFETY: by the ABI, the caller passes `count` valid arguments and a variable for the result.
                unsafe { $crate::call_exported(&$function, args, count, result) }
            }
        };
    };
}

/// The body of an exported function.
///
/// # Safety
/// The arguments are valid values of the C ABI during the call, and `result` is a variable for the result.
#[doc(hidden)]
pub unsafe fn call_exported<A>(
    function: &impl ExportedFunction<A>,
    args: *const Any,
    count: c_int,
    result: *mut Any,
) -> c_int {
    let run = |objects: &[Object]| function.call(&Args::of_objects(objects));
    // SAFETY: passed on.
    unsafe { call::answer(args, count, result, run, call::raise_of_library) }
}
