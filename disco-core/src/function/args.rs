//! Arguments of a call, on the worker's side.

use super::{Object, Registers};
use crate::error::{Error, Result};
use crate::value::Value;

/// The arguments of one call: values, and registers that stand for the worker's objects.
#[derive(Debug)]
pub struct Args<'a>(Source<'a>);

#[derive(Debug)]
enum Source<'a> {
    /// The arguments of a command.
    Command {
        values: &'a [Value],
        registers: &'a Registers,
    },
    Objects(&'a [Object]),
}

/// An argument.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A value from the command.
    Value(&'a Value),
    /// An object from a register.
    Object(&'a Object),
}

impl<'a> Args<'a> {
    pub(crate) fn new(values: &'a [Value], registers: &'a Registers) -> Self {
        Self(Source::Command { values, registers })
    }

    /// Arguments for a call by another function of the worker.
    pub fn of_objects(objects: &'a [Object]) -> Self {
        Self(Source::Objects(objects))
    }

    /// Number of arguments.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Command { values, .. } => values.len(),
            Source::Objects(objects) => objects.len(),
        }
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Argument `index`.
    ///
    /// # Errors
    /// There are fewer arguments, or the register is empty or poisoned.
    #[inline]
    pub fn arg(&self, index: usize) -> Result<Arg<'a>> {
        let missing = || Error::ArgumentCount { expected: index + 1, found: self.len() };
        match &self.0 {
            Source::Objects(objects) => objects.get(index).map(Arg::Object).ok_or_else(missing),
            Source::Command { values, registers } => match values.get(index).ok_or_else(missing)? {
                Value::Register(register) => registers.object(*register).map(Arg::Object),
                value => Ok(Arg::Value(value)),
            },
        }
    }

    #[inline]
    pub(super) fn expect(&self, count: usize) -> Result<()> {
        if self.len() == count { Ok(()) } else { Err(Error::ArgumentCount { expected: count, found: self.len() }) }
    }
}

impl<'a> Arg<'a> {
    /// The value, if the argument is one.
    #[inline]
    pub fn value(self) -> Option<&'a Value> {
        match self {
            Arg::Value(value) | Arg::Object(Object::Value(value)) => Some(value),
            Arg::Object(_) => None,
        }
    }

    /// The kind as text, for messages.
    pub fn kind(self) -> &'static str {
        match self {
            Arg::Value(value) => value.kind(),
            Arg::Object(object) => object.kind(),
        }
    }
}
