//! Register ids of a session.

use crate::error::{Error, Result};
use crate::id::RegisterId;

/// Hands out ids, freed ones first.
#[derive(Debug, Default)]
pub(super) struct RegisterIds {
    next: u32,
    free: Vec<RegisterId>,
}

impl RegisterIds {
    /// Ids that workers are told to free before the next command, which may use them.
    pub(super) fn free(&mut self, freed: &[RegisterId]) {
        self.free.extend_from_slice(freed);
    }

    /// # Errors
    /// All [`RegisterId::LIMIT`] are in use.
    pub(super) fn take(&mut self) -> Result<RegisterId> {
        if let Some(id) = self.free.pop() {
            return Ok(id);
        }
        if self.next == RegisterId::LIMIT {
            return Err(Error::state(format!("all {} registers are in use; drop some handles", RegisterId::LIMIT)));
        }
        self.next += 1;
        Ok(RegisterId::new(self.next - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ids_are_used_again_before_new_ones() {
        let mut ids = RegisterIds::default();
        let (a, b) = (ids.take().unwrap(), ids.take().unwrap());
        ids.free(&[a]);
        assert_eq!(ids.take().unwrap(), a);
        assert_ne!(ids.take().unwrap(), b);
    }

    #[test]
    fn ids_are_bounded() {
        let mut ids = RegisterIds { next: RegisterId::LIMIT - 1, free: Vec::new() };
        ids.take().unwrap();
        assert!(ids.take().unwrap_err().to_string().contains("16777216 registers are in use"));
    }
}
