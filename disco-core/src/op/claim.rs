//! The borrow flags of a group's tensors.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Op;
use crate::error::Result;
use crate::tensor::{Access, Storage};

/// The storages that a group of operations reads and writes, held until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Claims<'a>(SmallVec<[Claim<'a>; 4]>);

/// One of them.
#[derive(Debug)]
struct Claim<'a> {
    storage: &'a Arc<Storage>,
    writes: bool,
}

impl Claims<'_> {
    /// The same as rights of their own, which outlive the operations.
    pub fn keep(mut self) -> Vec<Access> {
        self.0.drain(..).map(|claim| claim.storage.claimed(claim.writes)).collect()
    }
}

impl Drop for Claims<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.iter().for_each(|claim| claim.storage.release(claim.writes));
    }
}

/// Claims each storage of a group once: for writing if any operation writes to it, for reading otherwise.
///
/// # Errors
/// [`Error::Busy`](crate::Error::Busy) if somebody views one of them in a way that excludes this.
#[inline]
pub fn claim(group: &[Op]) -> Result<Claims<'_>> {
    let mut claims = Claims(SmallVec::new());
    let written = group.iter().filter_map(Op::dst).map(|dst| (dst.storage(), true));
    let read = group.iter().filter_map(Op::src).map(|src| (src.storage(), false));
    for (storage, writes) in written.chain(read) {
        if !claims.0.iter().any(|claim| Arc::ptr_eq(claim.storage, storage)) {
            storage.claim(writes)?;
            claims.0.push(Claim { storage, writes });
        }
    }
    Ok(claims)
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
        let claims = claim(&group).unwrap();
        assert!(all.view::<f32>().is_err());
        let kept = claims.keep();
        assert!(all.view::<f32>().is_err() && kept.len() == 1);
        drop(kept);
        assert!(all.view::<f32>().is_ok());
        drop(claim(&group).unwrap());
        assert!(all.view::<f32>().is_ok());
    }
}
