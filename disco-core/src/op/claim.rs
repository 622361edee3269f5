//! The borrow flags of a group's tensors.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Op;
use crate::error::Result;
use crate::tensor::{Access, Storage};

/// Claims of the storages that a group of operations reads and writes. Dropping the value releases them.
///
/// The caller makes an empty value and fills it in place: moving it costs more than the claims.
#[must_use]
#[derive(Debug, Default)]
pub struct Claims<'a> {
    claims: SmallVec<[Claim<'a>; 4]>,
    is_kept: Cell<bool>,
}

/// The claim of one storage.
#[derive(Debug)]
struct Claim<'a> {
    storage: &'a Arc<Storage>,
    writes: bool,
}

impl<'a> Claims<'a> {
    /// Fails if a group of operations can't be claimed now, as [`Claims::claim`] does. For operations whose steps claim the
    /// tensors.
    ///
    /// # Errors
    /// As [`Claims::claim`].
    pub fn check(ops: &[Op]) -> Result<()> {
        Claims::default().claim(ops)
    }

    /// Claims each storage of a group once: for writing if any operation writes to it, for reading otherwise.
    ///
    /// # Errors
    /// [`Error::Busy`](crate::Error::Busy) if a view of one of the tensors excludes this use.
    #[inline(always)]
    pub fn claim(&mut self, group: &'a [Op]) -> Result<()> {
        let written = group.iter().filter_map(Op::dst).map(|dst| (dst.storage(), true));
        let read = group.iter().filter_map(Op::src).map(|src| (src.storage(), false));
        for (storage, writes) in written.chain(read) {
            if !self.claims.iter().any(|claim| Arc::ptr_eq(claim.storage, storage)) {
                storage.claim(writes)?;
                self.claims.push(Claim { storage, writes });
            }
        }
        Ok(())
    }

    /// Converts the claims to [`Access`]es, which may outlive the operations. Empty if they were converted before.
    pub fn keep(&self) -> Vec<Access> {
        let claims = if self.is_kept.replace(true) { &[] } else { &self.claims[..] };
        claims.iter().map(|claim| claim.storage.claimed(claim.writes)).collect()
    }
}

impl Drop for Claims<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_kept.get() {
            self.claims.iter().for_each(|claim| claim.storage.release(claim.writes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Rank, Tensor};

    #[test]
    fn windows_of_one_storage_are_claimed_once() {
        let all = Tensor::zeros(DType::F32, [8]).unwrap();
        let group = [
            Op::Send { src: all.window(0, [4]).unwrap(), to: Rank::new(1) },
            Op::Recv { dst: all.window(4, [4]).unwrap(), from: Rank::new(1) },
        ];
        let mut claims = Claims::default();
        claims.claim(&group).unwrap();
        assert!(all.view::<f32>().is_err());
        let kept = claims.keep();
        assert!(kept.len() == 1 && claims.keep().is_empty());
        drop(claims);
        assert!(all.view::<f32>().is_err());
        drop(kept);
        assert!(all.view::<f32>().is_ok());
        let mut claims = Claims::default();
        claims.claim(&group).unwrap();
        drop(claims);
        assert!(all.view::<f32>().is_ok());
    }
}
