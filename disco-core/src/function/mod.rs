//! Worker functions: typed Rust functions registered under names.
//!
//! ```
//! use disco_core::{Result, Tensor, WorkerContext};
//!
//! fn scale(_ctx: &mut WorkerContext, x: Tensor, by: f64) -> Result<Tensor> {
//!     x.view_mut::<f64>()?.iter_mut().for_each(|x| *x *= by);
//!     Ok(x)
//! }
//!
//! disco_core::register_function!("example.scale", scale);
//! ```

mod convert;
#[cfg(feature = "serde")]
mod json;
mod object;
mod registers;

use std::any::Any;
use std::cell::OnceCell;
use std::error::Error as StdError;
use std::rc::Rc;

pub use convert::{FromArg, IntoObject};
#[cfg(feature = "serde")]
pub use json::Json;
pub use object::{Object, Opaque};
pub use registers::{Arg, Args, Registers};

use crate::activity::{Activity, TimeLimit};
use crate::context::WorkerContext;
use crate::error::{Error, Result};
use crate::metrics;
use crate::suggestion::similar;

/// The error of a worker function: any error, with its chain of causes.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A worker function with its name, callable with any arguments.
#[derive(Clone)]
pub struct Function(Rc<Named>);

struct Named {
    name: String,
    call: Box<Packed>,
    /// The value behind the function; `()` if it has none.
    inner: Rc<dyn Any>,
    /// The name's number in the worker's [`Activity`](crate::activity::Activity), set by the first call.
    tag: OnceCell<u32>,
    limit: TimeLimit,
    calls: metrics::Calls,
}

type Packed = dyn Fn(&mut WorkerContext, &Args<'_>) -> Result<Object, BoxError>;

impl Function {
    /// A function from an untyped closure.
    pub fn new(
        name: impl Into<String>,
        call: impl Fn(&mut WorkerContext, &Args<'_>) -> Result<Object, BoxError> + 'static,
    ) -> Self {
        Self::of(name.into(), Box::new(call), Rc::new(()), TimeLimit::Call)
    }

    /// A function that calls `call` with `inner`. [`Function::downcast`] returns `inner`, so that a crate which wraps
    /// functions of libraries recognises its own.
    pub fn with_inner<T: 'static>(
        name: impl Into<String>,
        inner: Rc<T>,
        call: fn(&Rc<T>, &mut WorkerContext, &Args<'_>) -> Result<Object, BoxError>,
    ) -> Self {
        let callee = inner.clone();
        let call = Box::new(move |ctx: &mut WorkerContext, args: &Args<'_>| call(&callee, ctx, args));
        Self::of(name.into(), call, inner, TimeLimit::Call)
    }

    fn of(name: String, call: Box<Packed>, inner: Rc<dyn Any>, limit: TimeLimit) -> Self {
        Self(Rc::new(Named { name, call, inner, tag: OnceCell::new(), limit, calls: metrics::Calls::new() }))
    }

    /// The value behind a function that [`Function::with_inner`] made, if it is a `T`.
    pub fn downcast<T: 'static>(&self) -> Option<Rc<T>> {
        self.0.inner.clone().downcast().ok()
    }

    /// The name of the lookup.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The name's number in the activity of the worker that owns this function.
    pub(crate) fn tag(&self, activity: &Activity) -> u32 {
        *self.0.tag.get_or_init(|| activity.intern(self.name()))
    }

    /// Whose time limit holds while a worker is inside.
    pub(crate) fn limit(&self) -> TimeLimit {
        self.0.limit
    }

    /// The function's metrics.
    pub(crate) fn calls(&self) -> &metrics::Calls {
        &self.0.calls
    }

    /// Calls the function.
    ///
    /// # Errors
    /// The arguments do not fit, or the function fails.
    #[inline]
    pub fn call(&self, ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError> {
        (self.0.call)(ctx, args)
    }
}

crate::format_as!(Debug for Function, |it| "<function {}>", it.name());

/// An entry of a worker function in the registry; made by [`register_function!`](crate::register_function).
#[allow(clippy::exhaustive_structs, reason = "`register_function!` writes one in the crate of the function")]
#[derive(Clone, Copy, Debug)]
pub struct FunctionEntry {
    /// Name for [`Session::function`](crate::Session::function). Prefix it with your program's name.
    pub name: &'static str,
    /// The function.
    pub call: fn(&mut WorkerContext, &Args<'_>) -> Result<Object, BoxError>,
    /// Whose time limit holds while a worker is inside.
    pub limit: TimeLimit,
    /// The place of the registration: `module at file:line`.
    pub place: &'static str,
}

inventory::collect!(FunctionEntry);

/// Registers worker functions: `register_function!("name", function);`.
///
/// A function takes `&mut WorkerContext` and up to eight arguments that implement
/// [`FromArg`](crate::function::FromArg). It returns a `Result` whose value implements
/// [`IntoObject`](crate::function::IntoObject), with any error type. A session does not start if two functions have the
/// same name. The session's limit for calls, [`Deadlines::call`](crate::session::Deadlines::call), does not hold for a function
/// that is registered with `limit: TimeLimit::Own` behind it, as one that only waits for other workers.
#[macro_export]
macro_rules! register_function {
    ($name:expr, $function:path) => {
        $crate::register_function!($name, $function, limit: $crate::activity::TimeLimit::Call);
    };
    ($name:expr, $function:path, limit: $limit:expr) => {
        $crate::inventory::submit! {
            $crate::function::FunctionEntry {
                name: $name,
                call: |ctx, args| $crate::function::invoke(&$function, ctx, args),
                limit: $limit,
                place: ::std::concat!(::std::module_path!(), " at ", ::std::file!(), ":", ::std::line!()),
            }
        }
    };
}

/// A function with the signature of a worker function. `A` is the tuple of its argument types.
///
/// The trait does not require [`FromArgs`] or [`IntoObject`]. Other bounds do, so that a compiler error names the type
/// that can't be an argument or a result.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no worker function",
    label = "not a worker function",
    note = "a worker function is `fn(&mut WorkerContext, ..) -> Result<T, E>` with up to eight arguments behind the context"
)]
pub trait WorkerFunction<A> {
    /// The type of its results.
    type Output;
    /// The type of its errors.
    type Error;

    /// Calls the function.
    ///
    /// # Errors
    /// The function fails.
    fn call(&self, ctx: &mut WorkerContext, args: A) -> Result<Self::Output, Self::Error>;
}

/// A tuple of types that implement [`FromArg`]: the arguments of a worker function.
pub trait FromArgs: Sized {
    /// Converts the arguments of a call.
    ///
    /// # Errors
    /// [`Error::ArgumentCount`] or [`Error::Argument`].
    fn from_args(args: &Args<'_>) -> Result<Self>;
}

/// Converts the arguments, calls a worker function, converts its result.
#[doc(hidden)]
#[inline]
pub fn invoke<A, F>(f: &F, ctx: &mut WorkerContext, args: &Args<'_>) -> Result<Object, BoxError>
where
    F: WorkerFunction<A>,
    A: FromArgs,
    F::Output: IntoObject,
    F::Error: Into<BoxError>,
{
    f.call(ctx, A::from_args(args)?).map_err(F::Error::into).and_then(F::Output::try_into_object)
}

macro_rules! worker_function {
    ($($arg:ident $index:literal),*) => {
        impl<F, R, E, $($arg),*> WorkerFunction<($($arg,)*)> for F
        where
            F: Fn(&mut WorkerContext, $($arg),*) -> Result<R, E>,
        {
            type Output = R;
            type Error = E;

            #[allow(non_snake_case, reason = "one macro for all lengths")]
            fn call(&self, ctx: &mut WorkerContext, ($($arg,)*): ($($arg,)*)) -> Result<R, E> {
                self(ctx, $($arg),*)
            }
        }

        impl<$($arg: FromArg),*> FromArgs for ($($arg,)*) {
            #[inline]
            fn from_args(args: &Args<'_>) -> Result<Self> {
                args.expect(<[usize]>::len(&[$($index),*]))?;
                Ok(($(args.take::<$arg>($index)?,)*))
            }
        }
    };
}

worker_function!();
worker_function!(A 0);
worker_function!(A 0, B 1);
worker_function!(A 0, B 1, C 2);
worker_function!(A 0, B 1, C 2, D 3);
worker_function!(A 0, B 1, C 2, D 3, E1 4);
worker_function!(A 0, B 1, C 2, D 3, E1 4, G 5);
worker_function!(A 0, B 1, C 2, D 3, E1 4, G 5, H 6);
worker_function!(A 0, B 1, C 2, D 3, E1 4, G 5, H 6, I 7);

/// Names of all worker functions of this program, sorted.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = inventory::iter::<FunctionEntry>.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names
}

/// The worker function registered under `name`.
///
/// # Errors
/// [`Error::UnknownFunction`], with the most similar name.
pub fn find(name: &str) -> Result<Function> {
    let entry = inventory::iter::<FunctionEntry>.into_iter().find(|entry| entry.name == name);
    let similar = || similar(name, names()).map(str::to_owned);
    let entry = entry.ok_or_else(|| Error::UnknownFunction { name: name.into(), similar: similar() })?;
    Ok(Function::of(entry.name.into(), Box::new(entry.call), Rc::new(()), entry.limit))
}

/// Checks that each name is registered once.
///
/// # Errors
/// [`Error::Invalid`] with the name and both places, if two functions have the same name.
pub fn check_names() -> Result<()> {
    let mut entries: Vec<_> = inventory::iter::<FunctionEntry>.into_iter().collect();
    entries.sort_unstable_by_key(|entry| (entry.name, entry.place));
    match entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
        None => Ok(()),
        Some(pair) => Err(Error::invalid(format!(
            "two worker functions are registered as `{}`: in {} and in {}; give one of them another name",
            pair[0].name, pair[0].place, pair[1].place
        ))),
    }
}

/// Checks that another process has the same worker functions as this one.
///
/// # Errors
/// The sets of names differ. The error lists the differences.
pub fn compare(theirs: &[String]) -> Result<()> {
    let ours = names();
    let missing: Vec<&str> = ours.iter().copied().filter(|name| !theirs.iter().any(|n| n == name)).collect();
    let unknown: Vec<&str> = theirs.iter().map(String::as_str).filter(|name| !ours.contains(name)).collect();
    if missing.is_empty() && unknown.is_empty() {
        return Ok(());
    }
    let list = |what: &str, names: &[&str]| match names {
        [] => String::new(),
        names => format!("; {what}: {}", names.join(", ")),
    };
    let (missing, unknown) = (list("it lacks", &missing), list("only it has", &unknown));
    Err(Error::refused(format!("it is another program: its worker functions differ{missing}{unknown}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_unknown_name_suggests_a_similar_name() {
        let error = find("disco.al_reduce").unwrap_err().to_string();
        assert_eq!(error, "no worker function `disco.al_reduce` is registered; did you mean `disco.all_reduce`?");
        let error = find("something.else.entirely").unwrap_err().to_string();
        assert_eq!(error, "no worker function `something.else.entirely` is registered");
    }

    #[test]
    fn compare_with_other_functions_is_an_error() {
        let mut functions: Vec<String> = names().into_iter().map(str::to_owned).collect();
        compare(&functions).unwrap();
        let gone = functions.remove(0);
        functions.push("theirs.only".into());
        let error = compare(&functions).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("it is another program: its worker functions differ; it lacks: {gone}; only it has: theirs.only")
        );
    }
}
