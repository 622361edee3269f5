//! Makes one rank's part of a sub-case, and runs it: its tensors, its operation, and the contents that its tensors must have
//! afterwards.

use disco_core::{DType, Op, OpKind, Result};

use super::case::{Case, Layout};
use crate::communicator::buffer::{Buffer, POISON};
use crate::communicator::fixture::{Fixture, rank};
use crate::communicator::part::{Part, Seen, Want};
use crate::oracle::Values;

impl Case<'_> {
    /// Runs the sub-case and compares its results. Runs it twice if results must be equal in all runs.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Seen> {
        let ran = self.run_once(fixture)?;
        if !self.exact || self.values != Values::Any || ran.wrong.is_some() {
            return Ok(ran);
        }
        let again = self.run_once(fixture)?;
        let wrong = (again.result != ran.result).then(|| format!("{self}: a second run gives another result"));
        Ok(Seen { wrong, ..ran })
    }

    fn run_once(&self, fixture: &mut Fixture<'_>) -> Result<Seen> {
        let part = part(self, fixture)?;
        fixture.enqueue(&part.ops)?;
        let seen = part.inspect(fixture.ctx, self.dtype)?;
        Ok(Seen { wrong: seen.wrong.map(|wrong| format!("{self}: {wrong}")), ..seen })
    }
}

/// Makes the tensors of a sub-case, and its operation.
///
/// # Errors
/// An allocation fails, or the kind is not a collective with tensors.
pub(crate) fn part(case: &Case<'_>, fixture: &mut Fixture<'_>) -> Result<Part> {
    Maker { case, fixture }.part()
}

/// A source, if there is one, and a destination.
type Tensors = (Option<Buffer>, Buffer);

struct Maker<'a, 'b, 'c> {
    case: &'a Case<'a>,
    fixture: &'b mut Fixture<'c>,
}

impl Maker<'_, '_, '_> {
    fn part(mut self) -> Result<Part> {
        let &Case { kind, count, reduction, root: root_index, size, me, .. } = self.case;
        let (case, root, at_root) = (self.case, rank(root_index), me == root_index);
        let in_place = case.layout != Layout::Apart;
        let input = |count: usize| case.input(me, count);
        match kind {
            OpKind::AllReduce => {
                let tensors = self.mapped(input(count), count, in_place)?;
                let (src, dst) = self.passed(&tensors);
                Ok(both(Op::AllReduce { src, dst, reduction }, tensors, Want::Numbers(case.reduced(count))))
            }
            OpKind::Reduce if at_root => {
                let tensors = self.mapped(input(count), count, in_place)?;
                let (src, dst) = self.passed(&tensors);
                let op = Op::Reduce { src, dst: Some(dst), reduction, root };
                Ok(both(op, tensors, Want::Numbers(case.reduced(count))))
            }
            OpKind::Reduce => {
                self.sender(input(count), |src| Op::Reduce { src: Some(src), dst: None, reduction, root })
            }
            OpKind::ReduceScatter => {
                let tensors = self.mapped(input(size * count), count, in_place)?;
                let (src, dst) = self.passed(&tensors);
                let mine = case.reduced(size * count).cut(me * count, count);
                Ok(both(Op::ReduceScatter { src, dst, reduction }, tensors, Want::Numbers(mine)))
            }
            OpKind::AllGather => {
                let tensors = self.gathered(input(count), me * count, size * count)?;
                let (src, dst) = self.passed(&tensors);
                Ok(both(Op::AllGather { src, dst }, tensors, Want::Bytes(case.inputs(count))))
            }
            OpKind::Gather if at_root => {
                let tensors = self.gathered(input(count), me * count, size * count)?;
                let (src, dst) = self.passed(&tensors);
                Ok(both(Op::Gather { src, dst: Some(dst), root }, tensors, Want::Bytes(case.inputs(count))))
            }
            OpKind::Gather => self.sender(input(count), |src| Op::Gather { src: Some(src), dst: None, root }),
            OpKind::Broadcast => {
                let tensors =
                    if at_root { self.mapped(input(count), count, in_place)? } else { (None, self.output(count)?) };
                let (src, dst) = if at_root { self.passed(&tensors) } else { (None, tensors.1.tensor().clone()) };
                Ok(both(Op::Broadcast { src, dst, root }, tensors, Want::Bytes(case.input(root_index, count))))
            }
            OpKind::Scatter => self.scatter(at_root, in_place),
            OpKind::AllToAll => {
                let tensors = self.mapped(input(size * count), size * count, in_place)?;
                let (src, dst) = self.passed(&tensors);
                let blocks = (0..size).flat_map(|from| case.cut(&case.input(from, size * count), me * count, count));
                Ok(both(Op::AllToAll { src, dst }, tensors, Want::Bytes(blocks.collect())))
            }
            OpKind::AllGatherV => self.all_gather_v(),
            OpKind::AllToAllV => self.all_to_all_v(in_place),
            other => Err(disco_core::Error::invalid(format!("{other} is not a collective with tensors"))),
        }
    }

    fn scatter(&mut self, at_root: bool, in_place: bool) -> Result<Part> {
        let &Case { count, root: root_index, size, me, dtype, offset, .. } = self.case;
        let (case, root) = (self.case, rank(root_index));
        let all = case.input(root_index, size * count);
        let mine = Want::Bytes(case.cut(&all, me * count, count));
        if at_root && in_place {
            return self.sender(all, |src| Op::Scatter { src: Some(src), dst: None, root });
        }
        let src = if at_root { Some(self.buffer(dtype, all, offset)?) } else { None };
        let tensors = (src, self.output(count)?);
        let (src, dst) = (tensors.0.as_ref().map(|src| src.tensor().clone()), tensors.1.tensor().clone());
        Ok(both(Op::Scatter { src, dst: Some(dst), root }, tensors, mine))
    }

    fn all_gather_v(&mut self) -> Result<Part> {
        let &Case { count, size, me, .. } = self.case;
        let case = self.case;
        let counts: Vec<usize> = (0..size).map(|rank| uneven(7 * rank, count)).collect();
        let tensors = self.gathered(case.input(me, counts[me]), counts[..me].iter().sum(), counts.iter().sum())?;
        let (src, dst) = self.passed(&tensors);
        let blocks = (0..size).flat_map(|rank| case.input(rank, counts[rank]));
        let op = Op::AllGatherV { src, dst, counts: counts.clone().into() };
        Ok(both(op, tensors, Want::Bytes(blocks.collect())))
    }

    fn all_to_all_v(&mut self, in_place: bool) -> Result<Part> {
        let &Case { count, size, me, .. } = self.case;
        let case = self.case;
        // In place, a rank sends as many elements to each peer as it receives from it.
        let sent =
            |from: usize, to: usize| uneven(if in_place { from * to + from + to } else { 3 * from + 5 * to }, count);
        let row = |from: usize| (0..size).map(|to| sent(from, to)).collect::<Vec<usize>>();
        let input = |from: usize| case.input(from, row(from).iter().sum());
        let received: Vec<usize> = (0..size).map(|from| sent(from, me)).collect();
        let block = |from: usize| case.cut(&input(from), row(from)[..me].iter().sum(), sent(from, me));
        let tensors = self.mapped(input(me), received.iter().sum(), in_place)?;
        let (src, dst) = self.passed(&tensors);
        let op = Op::AllToAllV { src, send_counts: row(me).into(), dst, recv_counts: received.into() };
        Ok(both(op, tensors, Want::Bytes((0..size).flat_map(block).collect())))
    }

    /// A source, and a destination of `count` elements; in place the source alone, as the destination.
    fn mapped(&mut self, input: Vec<u8>, count: usize, in_place: bool) -> Result<Tensors> {
        let &Case { dtype, offset, .. } = self.case;
        if in_place {
            Ok((None, self.buffer(dtype, input, offset)?))
        } else {
            Ok((Some(self.buffer(dtype, input, offset)?), self.output(count)?))
        }
    }

    /// A source, and a destination of `total` elements; in place the destination alone, with the input at element
    /// `first`.
    fn gathered(&mut self, input: Vec<u8>, first: usize, total: usize) -> Result<Tensors> {
        let &Case { dtype, offset, layout, .. } = self.case;
        if layout == Layout::Apart {
            return Ok((Some(self.buffer(dtype, input, offset)?), self.output(total)?));
        }
        let mut content = vec![POISON; total * dtype.size()];
        content[first * dtype.size()..][..input.len()].copy_from_slice(&input);
        Ok((None, self.buffer(dtype, content, offset)?))
    }

    fn output(&mut self, count: usize) -> Result<Buffer> {
        let &Case { dtype, offset, .. } = self.case;
        // The destination has another alignment than the source.
        self.buffer(dtype, vec![POISON; count * dtype.size()], offset / 2)
    }

    fn buffer(&mut self, dtype: DType, content: Vec<u8>, offset: usize) -> Result<Buffer> {
        let buffer = self.fixture.buffer(dtype, content, offset)?;
        match self.case.row {
            Some(row) => buffer.in_rows(row),
            None => Ok(buffer),
        }
    }

    /// The part of a rank without an output.
    fn sender(&mut self, input: Vec<u8>, op: impl FnOnce(disco_core::Tensor) -> Op) -> Result<Part> {
        let src = self.buffer(self.case.dtype, input, self.case.offset)?;
        Ok(Part::new(op(src.tensor().clone()), [("src", src, Want::Unchanged)]))
    }

    fn passed(&self, (src, dst): &Tensors) -> (Option<disco_core::Tensor>, disco_core::Tensor) {
        let dst = dst.tensor().clone();
        match self.case.layout {
            Layout::Same => (Some(dst.clone()), dst),
            _ => (src.as_ref().map(|src| src.tensor().clone()), dst),
        }
    }
}

fn both(op: Op, (src, dst): Tensors, want: Want) -> Part {
    let src = src.map(|src| ("src", src, Want::Unchanged));
    Part::new(op, src.into_iter().chain([("dst", dst, want)]))
}

/// A count of at most `most`. Every third count is 0.
fn uneven(seed: usize, most: usize) -> usize {
    if seed % 3 == 1 { 0 } else { (seed + most) % (most + 1) }
}
