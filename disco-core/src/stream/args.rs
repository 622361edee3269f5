//! Arguments of a call, on the controller's side.

use std::sync::Arc;

use smallvec::SmallVec;

use super::DRef;
use super::dref::FreedIds;
use crate::calling::{Parts, ResultSender};
use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::value::Value;

/// The arguments of one call, with the handles among them.
#[derive(Debug, Default)]
pub struct Arguments {
    pub(super) values: Vec<Value>,
    /// Kept for the session's check, and so that no register is freed before the call is submitted.
    pub(super) handles: SmallVec<[DRef; 4]>,
    /// Why the call must fail: the first value that can't be an argument.
    refused: Option<Error>,
    /// For each worker, the range of its own arguments; none if all workers get all arguments.
    pub(super) parts: Option<Parts>,
    /// Gets the results that workers send while the call runs.
    pub(crate) results: Option<ResultSender>,
    /// The place of the worker that replies with its result.
    pub(super) answers: Option<WorkerId>,
}

impl Arguments {
    /// An empty list with capacity for `len` arguments.
    pub fn with_capacity(len: usize) -> Self {
        Self { values: Vec::with_capacity(len), ..Self::default() }
    }

    /// Appends an argument.
    pub fn push(&mut self, arg: impl IntoArg) {
        arg.push_to(self);
    }

    /// Appends the arguments of another list.
    pub(crate) fn append(&mut self, other: Self) {
        self.values.extend(other.values);
        self.handles.extend(other.handles);
        self.refused = self.refused.take().or(other.refused);
    }

    /// Makes the call fail with this error, unless an earlier error was set. For an argument that can't become a
    /// [`Value`].
    pub fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }

    /// The only argument, for [`Session::set`](crate::session::Session::set).
    ///
    /// # Errors
    /// The argument can't become a [`Value`].
    pub(crate) fn into_value(self) -> Result<Value> {
        match self.refused {
            Some(error) => Err(error),
            None => Ok(self.values.into_iter().next().unwrap_or(Value::None)),
        }
    }

    /// Refuses handles of other sessions, and registers that were not given as handles.
    pub(super) fn check(&self, freed_ids: &Arc<FreedIds>) -> Result<()> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        self.handles.iter().try_for_each(|handle| freed_ids.check(handle))?;
        let registers = self.values.iter().filter(|value| matches!(value, Value::Register(_))).count();
        if registers == self.handles.len() {
            Ok(())
        } else {
            Err(Error::invalid("call: an argument is a register; pass the handle that stands for it"))
        }
    }
}

/// Something that can be an argument: a handle, or anything that converts to a [`Value`]. A `u64`, `usize` or `isize`
/// that does not fit in `i64` makes the call fail.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be an argument of a call",
    label = "not an argument of a worker function",
    note = "an argument is an integer, a float, a `bool`, a string, bytes (`Vec<u8>`, `&[u8]`), a `Tensor` or `&Tensor`, a `Vec` of numbers or strings, a pair, a `Shape`, a `DType`, a `Device`, a `Mesh`, a `Scope`, a `DRef` or `&DRef`, a `Value`, or an `Option` of one of these",
    note = "a struct of any serde type is passed as `Json(value)` (feature `serde`), an own type with `register_object!`, and many numbers as a `Tensor`"
)]
pub trait IntoArg {
    /// Appends the argument to `args`.
    fn push_to(self, args: &mut Arguments);
}

/// A list of arguments: a tuple of up to eight, or [`Arguments`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no list of arguments",
    label = "not a tuple of arguments",
    note = "the arguments of a call are a tuple of up to eight: `()`, `(x,)`, `(&x, 2.0)`; more go into `Arguments`",
    note = "each is an `IntoArg`"
)]
pub trait IntoArgs {
    /// Converts the list.
    fn into_args(self) -> Arguments;
}

#[diagnostic::do_not_recommend]
impl<T: Into<Value>> IntoArg for T {
    fn push_to(self, args: &mut Arguments) {
        args.values.push(self.into());
    }
}

macro_rules! into_arg {
    ($($ty:ty),*) => {
        $(impl IntoArg for $ty {
            fn push_to(self, args: &mut Arguments) {
                match Value::try_from(self) {
                    Ok(value) => args.values.push(value),
                    Err(error) => args.refuse(Error::invalid(format!("call: argument {}: {error}", args.values.len()))),
                }
            }
        })*
    };
}

into_arg!(u64, usize, isize, Vec<u64>, Vec<usize>, Vec<isize>);

impl IntoArg for &DRef {
    fn push_to(self, args: &mut Arguments) {
        args.values.push(Value::Register(self.register()));
        args.handles.push(self.clone());
    }
}

impl IntoArg for DRef {
    fn push_to(self, args: &mut Arguments) {
        args.values.push(Value::Register(self.register()));
        args.handles.push(self);
    }
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> IntoArg for crate::function::Json<T> {
    fn push_to(self, args: &mut Arguments) {
        match self.to_value() {
            Ok(value) => args.values.push(value),
            Err(error) => args.refuse(error),
        }
    }
}

impl<T: IntoArg> IntoArg for Option<T> {
    fn push_to(self, args: &mut Arguments) {
        match self {
            Some(arg) => arg.push_to(args),
            None => args.values.push(Value::None),
        }
    }
}

impl IntoArgs for Arguments {
    fn into_args(self) -> Arguments {
        self
    }
}

macro_rules! into_args {
    ($($arg:ident)*) => {
        impl<$($arg: IntoArg),*> IntoArgs for ($($arg,)*) {
            #[allow(non_snake_case, unused_mut, reason = "one macro for all lengths")]
            fn into_args(self) -> Arguments {
                let ($($arg,)*) = self;
                let mut args = Arguments::with_capacity(<[&str]>::len(&[$(stringify!($arg)),*]));
                $(args.push($arg);)*
                args
            }
        }
    };
}

into_args!();
into_args!(A);
into_args!(A B);
into_args!(A B C);
into_args!(A B C D);
into_args!(A B C D E);
into_args!(A B C D E F);
into_args!(A B C D E F G);
into_args!(A B C D E F G H);
