//! The content of a register.

use std::any::{Any, type_name};
use std::rc::Rc;

use super::Function;
use crate::value::Value;

/// The content of a register: a value, a worker function, or any Rust value. It stays on the worker's thread; only
/// values can be sent to the controller.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Object {
    /// A value that can also be an argument.
    Value(Value),
    /// A worker function.
    Function(Function),
    /// Any Rust value that a worker function returned.
    Opaque(Opaque),
}

/// A reference-counted Rust value of one worker: state of the program in a register. Worker functions return it, and
/// take the inner value as `Rc<T>`. `examples/own_state.rs` is a complete program.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// use disco_core::{Opaque, Result, Session, WorkerContext, register_function};
///
/// /// The state of a worker: the steps that it has made.
/// fn start(_: &mut WorkerContext) -> Result<Opaque> {
///     Ok(Opaque::new(Cell::new(0i64)))
/// }
///
/// fn step(_: &mut WorkerContext, steps: Rc<Cell<i64>>) -> Result<i64> {
///     steps.set(steps.get() + 1);
///     Ok(steps.get())
/// }
///
/// register_function!("docs.start", start);
/// register_function!("docs.step", step);
///
/// /// Two steps of each worker, on the controller. The workers' states end with the handle `steps`.
/// async fn two_steps(session: &dyn Session) -> Result<Vec<i64>> {
///     let steps = session.call("docs.start", ()).await?;
///     session.call("docs.step", (&steps,)).await?;
///     let second = session.call("docs.step", (&steps,)).await?;
///     session.get_all(&second).await
/// }
/// ```
#[derive(Clone)]
pub struct Opaque {
    value: Rc<dyn Named>,
}

/// A value that knows the name of its type.
trait Named: Any {
    fn type_name(&self) -> &'static str;
}

impl<T: 'static> Named for T {
    fn type_name(&self) -> &'static str {
        type_name::<T>()
    }
}

impl Opaque {
    /// Wraps a value.
    pub fn new<T: 'static>(value: T) -> Self {
        Self { value: Rc::new(value) }
    }

    /// The inner value, if it is a `T`.
    pub fn downcast<T: 'static>(&self) -> Option<Rc<T>> {
        (self.value.clone() as Rc<dyn Any>).downcast().ok()
    }

    /// The name of the Rust type of the inner value.
    pub fn type_name(&self) -> &'static str {
        (*self.value).type_name()
    }
}

crate::format_as!(Debug for Opaque, |it| "<{}>", it.type_name());

impl Object {
    /// The kind as text, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Object::Value(value) => value.kind(),
            Object::Function(_) => "a function",
            Object::Opaque(opaque) => opaque.type_name(),
        }
    }
}

impl From<Value> for Object {
    fn from(value: Value) -> Self {
        Object::Value(value)
    }
}
