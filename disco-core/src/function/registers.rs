//! A worker's register file.

use std::sync::Arc;

use super::Object;
use crate::error::{Error, Failure, Result};
use crate::id::RegisterId;

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
