//! The borrow flags of a group's tensors.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Op;
use crate::error::Result;
use crate::tensor::{Access, Storage};

/// The storages that a group of operations reads and writes, held until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Claims {
    _held: SmallVec<[Access; 4]>,
}

/// Claims each storage of a group once: for writing if any operation writes to it, for reading otherwise.
///
/// # Errors
/// [`Error::Busy`](crate::Error::Busy) if somebody views one of them in a way that excludes this.
pub fn claim(group: &[Op]) -> Result<Claims> {
    let same = |storage: &Arc<Storage>| {
        let storage = Arc::as_ptr(storage);
        move |access: &Access| Arc::as_ptr(access.storage()) == storage
    };
    let mut held = SmallVec::<[Access; 4]>::new();
    for dst in group.iter().filter_map(Op::dst) {
        if !held.iter().any(same(dst.storage())) {
            held.push(dst.storage().write()?);
        }
    }
    for src in group.iter().filter_map(Op::src) {
        if !held.iter().any(same(src.storage())) {
            held.push(src.storage().read()?);
        }
    }
    Ok(Claims { _held: held })
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
        drop(claims);
        assert!(all.view::<f32>().is_ok());
    }
}
