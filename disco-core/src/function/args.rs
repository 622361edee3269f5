//! Arguments of a call, as a worker sees them.

use super::{FromArg, Object, Registers};
use crate::error::{Error, Result};
use crate::value::Value;

/// The arguments of one call: values, with registers standing for what the worker has in them.
#[derive(Debug)]
pub struct Args<'a> {
    values: &'a [Value],
    registers: &'a Registers,
}

/// One argument.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Came with the command.
    Value(&'a Value),
    /// Stands in a register.
    Object(&'a Object),
}

impl<'a> Args<'a> {
    pub(crate) fn new(values: &'a [Value], registers: &'a Registers) -> Self {
        Self { values, registers }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Argument `index`.
    ///
    /// # Errors
    /// There are fewer, or the register is empty or poisoned.
    pub fn arg(&self, index: usize) -> Result<Arg<'a>> {
        let value = self.values.get(index);
        let value = value.ok_or(Error::ArgumentCount { expected: index + 1, found: self.len() })?;
        match value {
            Value::Register(register) => self.registers.object(*register).map(Arg::Object),
            value => Ok(Arg::Value(value)),
        }
    }

    /// Argument `index` as a `T`.
    ///
    /// # Errors
    /// As [`Args::arg`], and [`Error::Argument`] if it is something else.
    pub fn take<T: FromArg>(&self, index: usize) -> Result<T> {
        let arg = self.arg(index)?;
        T::from_arg(arg).ok_or_else(|| Error::Argument { index, expected: T::expected(), found: T::found(arg) })
    }

    pub(super) fn expect(&self, count: usize) -> Result<()> {
        match self.len() == count {
            true => Ok(()),
            false => Err(Error::ArgumentCount { expected: count, found: self.len() }),
        }
    }
}

impl<'a> Arg<'a> {
    /// The value, if it is one.
    pub fn value(self) -> Option<&'a Value> {
        match self {
            Arg::Value(value) | Arg::Object(Object::Value(value)) => Some(value),
            Arg::Object(_) => None,
        }
    }

    /// The kind, in words, for messages.
    pub fn kind(self) -> &'static str {
        match self {
            Arg::Value(value) => value.kind(),
            Arg::Object(object) => object.kind(),
        }
    }
}
