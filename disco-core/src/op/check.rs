//! Checks of one rank's arguments, without communication.

use super::{Merge, Op, Reduction};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::id::Rank;
use crate::tensor::Tensor;

/// Checks a group of rank `rank` of `size`: each operation separately, and their combination. Backends call this
/// function before they start any operation.
///
/// # Errors
/// [`Error::Invalid`]: errors of [`Op::check`]; the group mixes point-to-point operations and collectives; the elements
/// of a receive overlap those of another operation; a send of the rank to itself has no matching receive in the group,
/// or a receive no matching send.
///
/// ```
/// use disco_core::{DType, Op, Rank, Tensor, op::check_ops};
///
/// let tensor = Tensor::zeros(DType::F32, [4])?;
/// let send = Op::Send { src: tensor, to: Rank::new(1) };
/// check_ops(&[send.clone()], Rank::new(0), 2)?;
/// let error = check_ops(&[send, Op::Barrier], Rank::new(0), 2).unwrap_err();
/// assert_eq!(error.to_string(), "a group holds either point-to-point operations or collectives, not both");
/// # Ok::<(), disco_core::Error>(())
/// ```
pub fn check_ops(ops: &[Op], rank: Rank, size: usize) -> Result<()> {
    ops.iter().try_for_each(|op| op.check(rank, size))?;
    let mut kinds = ops.iter().map(|op| op.kind().is_point_to_point());
    let first = kinds.next();
    if !kinds.all(|kind| Some(kind) == first) {
        return Err(Error::invalid("a group holds either point-to-point operations or collectives, not both"));
    }
    if first == Some(true) { check_pairs(ops, rank) } else { Ok(()) }
}

/// Refuses device tensors, for a `backend` that supports host tensors only.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn check_host(ops: &[Op], backend: &'static str) -> Result<()> {
    for op in ops {
        if let Some(tensor) = [op.src(), op.dst()].into_iter().flatten().find(|tensor| !tensor.device().is_host()) {
            let operation = format!("{} on {}", op.kind(), tensor.device());
            return Err(Error::Unsupported { backend, operation, dtype: None });
        }
    }
    Ok(())
}

fn check_pairs(ops: &[Op], rank: Rank) -> Result<()> {
    for (index, dst) in ops.iter().enumerate().filter_map(|(index, op)| Some((index, op.dst()?))) {
        if let Some(src) = ops.iter().filter_map(Op::src).find(|src| src.overlaps(dst)) {
            return Err(Error::invalid(format!("one group sends {src} and receives into {dst}, which overlap")));
        }
        if let Some(other) = ops[..index].iter().filter_map(Op::dst).find(|other| other.overlaps(dst)) {
            return Err(Error::invalid(format!("one group receives into {other} and into {dst}, which overlap")));
        }
    }
    let sent = ops.iter().filter(|op| matches!(op, Op::Send { to, .. } if *to == rank)).count();
    let received = ops.iter().filter(|op| matches!(op, Op::Recv { from, .. } if *from == rank)).count();
    if sent == received {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{rank} sends {sent} tensors to itself and receives {received}; a group must do both alike"
        )))
    }
}

impl Op {
    /// Checks the arguments of rank `rank` of `size`: counts, dtypes, root, layout, overlap and registered reductions. Backends call this
    /// method before they start the operation.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the operation and the reason.
    pub fn check(&self, rank: Rank, size: usize) -> Result<()> {
        if rank.index() >= size {
            return self.refuse(format!("{rank} of {size} ranks does not exist"));
        }
        self.check_ranks(size)?;
        self.check_layout()?;
        self.check_counts(rank, size)?;
        if let Some(Reduction::Custom(_)) = self.reduction() {
            self.check_rows(size)?;
        }
        self.check_overlap()
    }

    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T> {
        Err(Error::invalid(format!("{}: {why}", self.kind())))
    }

    fn check_ranks(&self, size: usize) -> Result<()> {
        match self.peer().or(self.root()) {
            Some(peer) if peer.index() >= size => self.refuse(format!("{peer} of {size} ranks does not exist")),
            _ => Ok(()),
        }
    }

    fn check_layout(&self) -> Result<()> {
        if let Some(tensor) = [self.src(), self.dst()].into_iter().flatten().find(|t| !t.is_contiguous()) {
            return self.refuse(format!("{tensor} is not contiguous"));
        }
        match (self.src(), self.dst()) {
            (Some(src), Some(dst)) if src.dtype() != dst.dtype() => {
                self.refuse(format!("src is {} and dst is {}", src.dtype(), dst.dtype()))
            }
            (Some(src), Some(dst)) if src.device() != dst.device() => {
                self.refuse(format!("src is on {} and dst is on {}", src.device(), dst.device()))
            }
            _ if self.dtype() == Some(DType::Bool) && self.reduction() == Some(Reduction::Avg) => {
                self.refuse("bool has no avg")
            }
            _ => Ok(()),
        }
    }

    fn check_counts(&self, rank: Rank, size: usize) -> Result<()> {
        let len = Tensor::elements;
        let same = |src: &Option<Tensor>, dst: &Tensor| self.expect("src", src.as_ref(), len(dst));
        let blocks = |name, tensor: &Tensor| {
            let refuse = || self.refuse(format!("{name} has {} elements, not a multiple of {size} ranks", len(tensor)));
            if len(tensor).is_multiple_of(size) { Ok(len(tensor) / size) } else { refuse() }
        };
        let required = |name, tensor: &Option<Tensor>| match tensor {
            Some(_) => Ok(()),
            None => self.refuse(format!("{rank} needs a {name}")),
        };
        match self {
            Op::AllReduce { src, dst, .. } | Op::Broadcast { src, dst, .. } => same(src, dst),
            Op::AllToAll { src, dst } => blocks("dst", dst).and_then(|_| same(src, dst)),
            Op::Reduce { src, dst, root, .. } => match dst {
                _ if rank != *root => required("src", src),
                Some(dst) => same(src, dst),
                None => required("dst", dst),
            },
            Op::ReduceScatter { src: None, dst, .. } => blocks("dst", dst).map(drop),
            Op::ReduceScatter { src, dst, .. } => self.expect("src", src.as_ref(), len(dst).saturating_mul(size)),
            Op::AllGather { src, dst } => {
                let count = blocks("dst", dst)?;
                self.expect("src", src.as_ref(), count)
            }
            Op::Gather { src, dst, root } => match dst {
                _ if rank != *root => required("src", src),
                Some(dst) => {
                    let count = blocks("dst", dst)?;
                    self.expect("src", src.as_ref(), count)
                }
                None => required("dst", dst),
            },
            Op::Scatter { src, dst, root } => match src {
                _ if rank != *root => required("dst", dst),
                Some(src) => {
                    let count = blocks("src", src)?;
                    self.expect("dst", dst.as_ref(), count)
                }
                None => required("src", src),
            },
            Op::AllGatherV { src, dst, counts } => {
                self.expect_counts("counts", counts, size)?;
                self.expect("dst", Some(dst), total(counts))?;
                self.expect("src", src.as_ref(), counts[rank.index()])
            }
            Op::AllToAllV { src, send_counts, dst, recv_counts } => {
                self.expect_counts("send_counts", send_counts, size)?;
                self.expect_counts("recv_counts", recv_counts, size)?;
                if src.is_none() && send_counts != recv_counts {
                    return self.refuse("in place, send_counts and recv_counts must be alike");
                }
                self.expect("src", src.as_ref(), total(send_counts))?;
                self.expect("dst", Some(dst), total(recv_counts))
            }
            Op::Send { .. } | Op::Recv { .. } | Op::Barrier => Ok(()),
        }
    }

    fn expect(&self, name: &str, tensor: Option<&Tensor>, elements: usize) -> Result<()> {
        match tensor {
            Some(tensor) if tensor.elements() != elements => {
                self.refuse(format!("{name} has {} elements, expected {elements}", tensor.elements()))
            }
            _ => Ok(()),
        }
    }

    fn expect_counts(&self, name: &str, counts: &[usize], size: usize) -> Result<()> {
        if counts.len() == size {
            Ok(())
        } else {
            self.refuse(format!("{name} has {} entries for {size} ranks", counts.len()))
        }
    }

    /// Checks a reduction of the program: it is registered, and all blocks are whole rows.
    fn check_rows(&self, size: usize) -> Result<()> {
        Merge::of(self)?;
        let row = self.row();
        if let (Some(src), Some(dst)) = (self.src(), self.dst())
            && src.shape().last() != dst.shape().last()
        {
            return self.refuse(format!(
                "{src} and {dst} differ in their last dimension, the row that a reduction of a program merges"
            ));
        }
        let block = self.count(size);
        if block.is_multiple_of(row) {
            Ok(())
        } else {
            self.refuse(format!("a block of {block} elements has no whole number of rows of {row}"))
        }
    }

    fn check_overlap(&self) -> Result<()> {
        let (Some(src), Some(dst)) = (self.src(), self.dst()) else { return Ok(()) };
        let is_whole = matches!(self, Op::AllReduce { .. } | Op::Reduce { .. } | Op::Broadcast { .. })
            && (src.data(), src.byte_len()) == (dst.data(), dst.byte_len());
        if is_whole || !src.overlaps(dst) {
            Ok(())
        } else {
            self.refuse("src and dst overlap; pass no src for an operation in place")
        }
    }
}

fn total(counts: &[usize]) -> usize {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(n: i64) -> Tensor {
        Tensor::zeros(DType::F32, [n]).unwrap()
    }

    fn why(op: &Op) -> String {
        op.check(Rank::new(1), 4).unwrap_err().to_string()
    }

    #[test]
    fn an_invalid_group_is_an_error() {
        let (rank, other) = (Rank::new(1), Rank::new(0));
        let why = |ops: &[Op]| check_ops(ops, rank, 4).unwrap_err().to_string();
        let send = |to| Op::Send { src: tensor(2), to };
        let recv = |dst: &Tensor, from| Op::Recv { dst: dst.clone(), from };
        assert_eq!(why(&[send(rank)]), "rank 1 sends 1 tensors to itself and receives 0; a group must do both alike");
        let mixed = "a group holds either point-to-point operations or collectives, not both";
        assert_eq!(why(&[send(other), Op::Barrier]), mixed);
        let all = tensor(4);
        let parts = [all.window(0, [3]).unwrap(), all.window(2, [2]).unwrap()];
        assert!(why(&[recv(&parts[0], other), recv(&parts[1], other)]).ends_with(", which overlap"));
        assert!(check_ops(&[send(rank), recv(&all, rank), send(other)], rank, 4).is_ok());
    }

    #[test]
    fn errors_of_counts_roots_and_dtypes_name_the_operation() {
        let gather = Op::AllGather { src: Some(tensor(2)), dst: tensor(12) };
        assert_eq!(why(&gather), "all_gather: src has 2 elements, expected 3");
        assert_eq!(
            why(&Op::AllToAll { src: None, dst: tensor(6) }),
            "all_to_all: dst has 6 elements, not a multiple of 4 ranks"
        );
        let broadcast = Op::Broadcast { src: None, dst: tensor(1), root: Rank::new(4) };
        assert_eq!(why(&broadcast), "broadcast: rank 4 of 4 ranks does not exist");
        let reduce = Op::Reduce { src: None, dst: None, reduction: Reduction::Sum, root: Rank::new(0) };
        assert_eq!(why(&reduce), "reduce: rank 1 needs a src");
        let mixed = Tensor::zeros(DType::I32, [1]).unwrap();
        let mixed = Op::AllReduce { src: Some(tensor(1)), dst: mixed, reduction: Reduction::Sum };
        assert_eq!(why(&mixed), "all_reduce: src is f32 and dst is i32");
    }

    #[test]
    fn rows_of_a_reduction_of_the_program_are_never_cut() {
        let reduction = crate::reductions::ARGMAX;
        let tensor = |shape: &[i64]| Tensor::zeros(DType::F32, shape).unwrap();
        let flat = Op::AllReduce { src: Some(tensor(&[2, 2])), dst: tensor(&[4]), reduction };
        assert_eq!(
            why(&flat),
            "all_reduce: tensor f32[2, 2] on cpu and tensor f32[4] on cpu differ in their last dimension, the row \
             that a reduction of a program merges"
        );
        let cut = Op::ReduceScatter { src: None, dst: tensor(&[2, 4]), reduction };
        assert_eq!(why(&cut), "reduce_scatter: a block of 2 elements has no whole number of rows of 4");
        for shape in [&[3, 2][..], &[], &[0], &[0, 2]] {
            Op::AllReduce { src: None, dst: tensor(shape), reduction }.check(Rank::new(0), 4).unwrap();
        }
        let dst = Tensor::zeros(DType::I8, [2]).unwrap();
        let other = Op::AllReduce { src: None, dst, reduction };
        assert_eq!(why(&other), "all_reduce: the reduction `disco.argmax` is registered for f32, f64, not for i8");
    }

    #[test]
    fn partial_overlap_is_an_error_and_equal_elements_are_in_place() {
        let all = tensor(8);
        let sum = Reduction::Sum;
        let shifted =
            Op::AllReduce { src: Some(all.window(0, [4]).unwrap()), dst: all.window(2, [4]).unwrap(), reduction: sum };
        assert!(why(&shifted).contains("overlap"));
        let same = Op::AllReduce { src: Some(all.clone()), dst: all.clone(), reduction: sum };
        same.check(Rank::new(0), 4).unwrap();
        let halves =
            Op::AllReduce { src: Some(all.window(0, [4]).unwrap()), dst: all.window(4, [4]).unwrap(), reduction: sum };
        halves.check(Rank::new(0), 4).unwrap();
    }
}
