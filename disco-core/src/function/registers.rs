//! A worker's register file, and arguments of a call, which may stand for its objects.

use std::sync::Arc;

use super::Object;
use crate::error::{Error, Failure, Result};
use crate::id::RegisterId;
use crate::value::Value;

/// The objects of one worker, by register. Grows with the largest id used, which is less than [`RegisterId::COUNT`].
#[derive(Debug, Default)]
pub struct Registers {
    slots: Vec<Slot>,
    /// The epoch that began with this worker, if it has joined a session that had begun before.
    new_since: Option<u64>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Full(Object),
    /// The command that sets the register failed or was skipped.
    Poisoned(Arc<Failure>),
}

impl Registers {
    /// The object in a register.
    ///
    /// # Errors
    /// The register is empty, or poisoned by a failure, which the error names.
    #[inline]
    pub fn object(&self, register: RegisterId) -> Result<&Object> {
        match self.slots.get(register.index()) {
            Some(Slot::Full(object)) => Ok(object),
            Some(Slot::Poisoned(failure)) => Err(Error::Worker(failure.clone())),
            Some(Slot::Empty) | None => Err(match self.new_since {
                Some(epoch) => Error::NotRestored { register, epoch },
                None => Error::invalid(format!("{register} is empty")),
            }),
        }
    }

    /// The worker has joined the session at the beginning of `epoch`.
    pub(crate) fn note_new(&mut self, epoch: u64) {
        self.new_since = Some(epoch);
    }

    #[inline]
    pub(crate) fn set(&mut self, register: RegisterId, object: Object) {
        *self.slot(register) = Slot::Full(object);
    }

    pub(crate) fn poison(&mut self, register: RegisterId, failure: Arc<Failure>) {
        *self.slot(register) = Slot::Poisoned(failure);
    }

    #[inline]
    pub(crate) fn clear(&mut self, register: RegisterId) {
        if let Some(slot) = self.slots.get_mut(register.index()) {
            *slot = Slot::Empty;
        }
    }

    #[inline]
    fn slot(&mut self, register: RegisterId) -> &mut Slot {
        let index = register.index();
        if index >= self.slots.len() {
            self.grow(index);
        }
        &mut self.slots[index]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.slots.resize_with((index + 1).next_power_of_two(), Slot::default);
    }
}

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
