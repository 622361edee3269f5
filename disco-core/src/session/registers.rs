//! Register ids of a session.

use crate::error::{Error, Result};
use crate::id::RegisterId;

/// Allocates register ids, freed ones first.
#[derive(Debug, Default)]
pub(super) struct RegisterIds {
    next: u32,
    free: Vec<RegisterId>,
}

impl RegisterIds {
    /// Adds ids that workers free before the next command, which may already reuse them.
    pub(super) fn free(&mut self, freed: &[RegisterId]) {
        self.free.extend_from_slice(freed);
    }

    /// Number of ids in use.
    pub(super) fn in_use(&self) -> usize {
        self.next as usize - self.free.len()
    }

    /// # Errors
    /// All [`RegisterId::COUNT`] ids are in use.
    pub(super) fn take(&mut self) -> Result<RegisterId> {
        if let Some(id) = self.free.pop() {
            return Ok(id);
        }
        if self.next == RegisterId::COUNT {
            return Err(Error::state(format!("all {} registers are in use; drop some DRefs", RegisterId::COUNT)));
        }
        self.next += 1;
        Ok(RegisterId::new(self.next - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ids_are_reused_before_new_ones() {
        let mut ids = RegisterIds::default();
        let (a, b) = (ids.take().unwrap(), ids.take().unwrap());
        ids.free(&[a]);
        assert_eq!(ids.in_use(), 1);
        assert_eq!(ids.take().unwrap(), a);
        assert_ne!(ids.take().unwrap(), b);
    }

    #[test]
    fn taking_more_ids_than_exist_is_an_error() {
        let mut ids = RegisterIds { next: RegisterId::COUNT - 1, free: Vec::new() };
        ids.take().unwrap();
        assert!(ids.take().unwrap_err().to_string().contains("16777216 registers are in use"));
    }
}
