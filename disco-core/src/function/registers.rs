//! A worker's register file.

use std::sync::Arc;

use super::Object;
use crate::error::{Error, Failure, Result};
use crate::id::RegisterId;

/// The objects of one worker, by register. Grows with the largest id used, which is less than [`RegisterId::COUNT`].
#[derive(Debug, Default)]
pub struct Registers(Vec<Slot>);

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
        match self.0.get(register.index()) {
            Some(Slot::Full(object)) => Ok(object),
            Some(Slot::Poisoned(failure)) => Err(Error::Worker(failure.clone())),
            Some(Slot::Empty) | None => Err(Error::invalid(format!("{register} is empty"))),
        }
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
        if let Some(slot) = self.0.get_mut(register.index()) {
            *slot = Slot::Empty;
        }
    }

    #[inline]
    fn slot(&mut self, register: RegisterId) -> &mut Slot {
        let index = register.index();
        if index >= self.0.len() {
            self.grow(index);
        }
        &mut self.0[index]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.0.resize_with((index + 1).next_power_of_two(), Slot::default);
    }
}
