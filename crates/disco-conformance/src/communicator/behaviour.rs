//! Behaviour of communicators other than results of single operations: barriers, groups, splits, refusals.

use disco_core::{Communicator, CommunicatorExt, DType, Error, Op, OpKind, Rank, Reduction, Result, Tensor, Work};

use super::fixture::{Fixture, rank};
use super::scenario::sum_of;
use super::verdict::{Tally, Verdict};

/// A behaviour: its name, the operations that it needs, and the function that each rank runs. The function returns an
/// entry for each sub-case: a text if the sub-case has failed.
pub(crate) struct Behaviour {
    pub(crate) name: &'static str,
    needs: &'static [OpKind],
    run: fn(&mut Fixture<'_>) -> Result<Vec<Option<String>>>,
}

/// All of them.
pub(crate) static ALL: [Behaviour; 13] = [
    Behaviour {
        name: "barrier::no_rank_passes_before_all_have_arrived",
        needs: &[OpKind::Barrier],
        run: no_rank_passes_before_all_have_arrived,
    },
    Behaviour {
        name: "group::collectives_run_in_order",
        needs: &[OpKind::AllReduce, OpKind::AllGather, OpKind::Barrier],
        run: collectives_run_in_order,
    },
    Behaviour {
        name: "group::collectives_that_depend_on_each_other_at_the_root_run_in_order",
        needs: &[OpKind::Reduce, OpKind::Broadcast],
        run: collectives_that_depend_on_each_other_at_the_root_run_in_order,
    },
    Behaviour { name: "group::an_empty_group_does_nothing", needs: &[], run: an_empty_group_does_nothing },
    Behaviour {
        name: "start::operations_run_in_the_order_of_the_calls",
        needs: &[OpKind::AllReduce],
        run: started_operations_run_in_the_order_of_the_calls,
    },
    Behaviour {
        name: "split::ranks_are_ordered_by_key_then_by_rank",
        needs: &[OpKind::AllGather],
        run: ranks_are_ordered_by_key_then_by_rank,
    },
    Behaviour {
        name: "split::no_color_gives_no_communicator",
        needs: &[OpKind::AllGather],
        run: no_color_gives_no_communicator,
    },
    Behaviour {
        name: "split::a_color_above_the_limit_breaks_nothing",
        needs: &[OpKind::AllGather],
        run: a_color_above_the_limit_breaks_nothing,
    },
    Behaviour {
        name: "split::children_outlive_their_parents",
        needs: &[OpKind::AllGather],
        run: children_outlive_their_parents,
    },
    Behaviour {
        name: "split::an_abort_of_a_child_does_not_abort_its_parent",
        needs: &[OpKind::AllGather],
        run: an_abort_of_a_child_does_not_abort_its_parent,
    },
    Behaviour {
        name: "split::an_abort_of_a_parent_reaches_its_children",
        needs: &[],
        run: an_abort_of_a_parent_reaches_its_children,
    },
    Behaviour {
        name: "windows::of_one_storage_are_independent_tensors",
        needs: &[OpKind::AllReduce],
        run: windows_are_independent_tensors,
    },
    Behaviour {
        name: "refusal::invalid_operations_are_refused_and_break_nothing",
        needs: &[OpKind::AllReduce, OpKind::AllGather, OpKind::Barrier],
        run: invalid_operations_are_refused_and_break_nothing,
    },
];

impl Behaviour {
    /// Runs the behaviour on this rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        let capabilities = fixture.comm()?.capabilities();
        let is_missing = |kind: &&OpKind| !capabilities.supports(**kind, DType::I32, sum_of(**kind));
        if let Some(kind) = self.needs.iter().find(is_missing) {
            let sum = if sum_of(*kind).is_some() { " sum" } else { "" };
            return Ok(Verdict::Skipped(format!("there is no {kind}{sum} of i32")));
        }
        let mut tally = Tally::default();
        (self.run)(fixture)?.into_iter().for_each(|wrong| tally.count(wrong, &[]));
        Ok(tally.verdict(fixture.color))
    }
}

fn no_rank_passes_before_all_have_arrived(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (store, (me, size)) = (fixture.ctx.store(), fixture.rank_and_size()?);
    let mut wrong = Vec::new();
    for round in 0..20 {
        let key = fixture.key(&format!("barrier {round}"));
        store.add(&key, 1)?;
        fixture.comm()?.barrier()?;
        let come = store.add(&key, 0)?;
        let early = format!("rank {me} passed barrier {round} when {come} of {size} ranks had arrived");
        wrong.push((come != size as i64).then_some(early));
    }
    Ok(wrong)
}

fn collectives_run_in_order(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let x = ints(fixture, &[1 + me as i32])?;
    let all = ints(fixture, &vec![0; size])?;
    let group = [
        Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum },
        Op::Barrier,
        Op::AllGather { src: Some(x), dst: all.clone() },
    ];
    fixture.enqueue(&group)?;
    let sum = (size * (size + 1) / 2) as i32;
    Ok(vec![same(fixture, "all_gather of the sums", &all, &vec![sum; size])?])
}

/// Other ranks than the root see no tensor that both operations use.
fn collectives_that_depend_on_each_other_at_the_root_run_in_order(
    fixture: &mut Fixture<'_>,
) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let (x, all) = (ints(fixture, &[1 + me as i32])?, ints(fixture, &[0])?);
    let root = Rank::new(size as u32 - 1);
    let sum = if me == root.index() { Some(ints(fixture, &[0])?) } else { None };
    let group = [
        Op::Reduce { src: Some(x), dst: sum.clone(), reduction: Reduction::Sum, root },
        Op::Broadcast { src: sum, dst: all.clone(), root },
    ];
    fixture.enqueue(&group)?;
    Ok(vec![same(fixture, "broadcast of the sum", &all, &[(size * (size + 1) / 2) as i32])?])
}

fn an_empty_group_does_nothing(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    fixture.enqueue(&[])?;
    Ok(vec![None])
}

/// Each rank starts some of the operations and enqueues the others.
fn started_operations_run_in_the_order_of_the_calls(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let x = ints(fixture, &[1])?;
    let sum = [Op::AllReduce { src: None, dst: x.clone(), reduction: Reduction::Sum }];
    let mut wrong = Vec::new();
    for round in 1..=4_u32 {
        let comm = fixture.comm()?;
        // The tensor is claimed until the end, so that the next round begins behind it.
        let work = if (me + round as usize).is_multiple_of(2) {
            comm.start(&sum)?
        } else {
            comm.enqueue(&sum).map(|()| Work::done())?
        };
        comm.start(&[])?.wait()?;
        work.wait()?;
        wrong.push(
            (!work.has_ended()).then(|| format!("rank {me}: the work of round {round} has not ended after its wait")),
        );
        wrong.push(same(fixture, "sums of sums", &x, &[(size as i32).wrapping_pow(round)])?);
    }
    Ok(wrong)
}

fn ranks_are_ordered_by_key_then_by_rank(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let all = || 0..size;
    let halves: [Vec<usize>; 2] = [0, 1].map(|parity| all().filter(|rank| rank % 2 == parity).collect());
    let (front, back): (Vec<usize>, Vec<usize>) = all().partition(|rank| *rank >= 2);
    Ok(vec![
        members(fixture, Some(me as u32 % 2), 0, &halves[me % 2])?,
        members(fixture, Some(7), -(me as i32), &all().rev().collect::<Vec<_>>())?,
        members(fixture, Some(7), i32::from(me < 2), &[front, back].concat())?,
        members(fixture, Some(u32::MAX >> 1), i32::MIN + me as i32, &all().collect::<Vec<_>>())?,
    ])
}

fn no_color_gives_no_communicator(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let others: Vec<usize> = (0..size).filter(|rank| *rank != size / 2).collect();
    if me != size / 2 {
        return Ok(vec![members(fixture, Some(0), 0, &others)?]);
    }
    let child = fixture.comm()?.split(None, 0)?;
    Ok(vec![child.map(|child| format!("rank {me} passed no color and got {child:?}"))])
}

fn a_color_above_the_limit_breaks_nothing(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let others: Vec<usize> = (0..size).filter(|rank| *rank != size / 2).collect();
    let split = if me == size / 2 {
        match fixture.comm()?.split(Some(1 << 31), 0) {
            Err(Error::Invalid(_)) => None,
            Ok(Some(child)) if child.size() == 1 => None,
            other => Some(format!("rank {me} passed color 2^31 and got {other:?}")),
        }
    } else {
        members(fixture, Some(0), 0, &others)?
    };
    // The communicator of all ranks is whole.
    fixture.comm()?.barrier()?;
    Ok(vec![split])
}

fn children_outlive_their_parents(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let mut child = existing(fixture.comm()?.split(Some(me as u32 % 2), 0)?)?;
    let key = 1 - child.rank().index() as i32;
    let mut grandchild = existing(child.split(Some(0), key)?)?;
    drop(child);
    let expected: Vec<usize> = (0..size).filter(|rank| rank % 2 == me % 2).rev().collect();
    Ok(vec![gathered(fixture, &mut *grandchild, &expected)?])
}

fn an_abort_of_a_child_does_not_abort_its_parent(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (_, size) = fixture.rank_and_size()?;
    let mut child = existing(fixture.comm()?.split(Some(0), 0)?)?;
    child.aborter().abort(&"aborted by the check".into());
    let then = child.barrier();
    let broken = matches!(&then, Err(Error::Aborted { .. } | Error::Broken { .. }));
    let all: Vec<usize> = (0..size).collect();
    Ok(vec![
        (!broken).then(|| format!("a barrier of an aborted communicator gives {then:?}")),
        members(fixture, Some(0), 0, &all)?,
    ])
}

fn an_abort_of_a_parent_reaches_its_children(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let mut parent = existing(fixture.comm()?.split(Some(0), 0)?)?;
    let mut child = existing(parent.split(Some(0), 0)?)?;
    let aborter = parent.aborter();
    drop(parent);
    aborter.abort(&"aborted by the check".into());
    let then = child.barrier();
    let told = matches!(&then, Err(Error::Aborted { cause } | Error::Broken { cause, .. }) if *cause == "aborted by the check".into());
    Ok(vec![(!told).then(|| format!("a barrier of a child of an aborted communicator gives {then:?}"))])
}

fn windows_are_independent_tensors(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (_, size) = fixture.rank_and_size()?;
    let whole = ints(fixture, &[9, 1, 2, 0, 0, 9])?;
    let (src, dst) = (whole.window(1, [2])?, whole.window(3, [2])?);
    fixture.comm()?.all_reduce(&src, &dst, Reduction::Sum)?;
    fixture.comm()?.synchronize()?;
    let sums = [9, 1, 2, size as i32, 2 * size as i32, 9];
    Ok(vec![same(fixture, "all_reduce from one window to another", &whole, &sums)?])
}

fn invalid_operations_are_refused_and_break_nothing(fixture: &mut Fixture<'_>) -> Result<Vec<Option<String>>> {
    let (me, size) = fixture.rank_and_size()?;
    let x = ints(fixture, &vec![1; 2 * size])?;
    let all = ints(fixture, &vec![0; size])?;
    let truth = fixture.tensor(DType::Bool, &[1])?;
    let other = fixture.tensor(DType::F32, &[0; 4])?;
    let sum = Reduction::Sum;
    let window = |first, count| x.window(first, [count]);
    let mut groups: Vec<(&str, Vec<Op>)> = vec![
        ("a root that is not there", vec![Op::Broadcast { src: None, dst: x.clone(), root: rank(size) }]),
        ("two dtypes", vec![Op::AllReduce { src: Some(other), dst: window(0, 1)?, reduction: sum }]),
        ("an average of truths", vec![Op::AllReduce { src: None, dst: truth, reduction: Reduction::Avg }]),
        ("a source that is missing", vec![Op::Reduce { src: None, dst: None, reduction: sum, root: rank(me) }]),
        (
            "a transfer beside a collective",
            vec![Op::Barrier, Op::Send { src: x.clone(), to: rank(me) }, Op::Recv { dst: all.clone(), from: rank(me) }],
        ),
    ];
    // With one rank, one element is the whole tensor, and a block can't overlap the block of another rank.
    if size > 1 {
        groups.extend([
            ("too few elements", vec![Op::AllReduce { src: Some(window(0, 1)?), dst: all.clone(), reduction: sum }]),
            ("partial overlap", vec![Op::AllGather { src: Some(window(1, 1)?), dst: window(0, size as i64)? }]),
        ]);
    }
    let mut wrong = Vec::new();
    for (what, group) in groups {
        let then = fixture.comm()?.enqueue(&group);
        let refused = matches!(then, Err(Error::Invalid(_) | Error::Unsupported { .. }));
        wrong.push((!refused).then(|| format!("{what}: expected to be refused, got {then:?}")));
    }
    fixture.comm()?.all_reduce_in_place(&x, sum)?;
    wrong.push(same(fixture, "all_reduce after refusals", &x, &vec![size as i32; 2 * size])?);
    Ok(wrong)
}

/// Splits the communicator and checks that the child has these ranks of the parent, in this order.
fn members(fixture: &mut Fixture<'_>, color: Option<u32>, key: i32, expected: &[usize]) -> Result<Option<String>> {
    let mut child = existing(fixture.comm()?.split(color, key)?)?;
    gathered(fixture, &mut *child, expected)
}

fn gathered(fixture: &mut Fixture<'_>, child: &mut dyn Communicator, expected: &[usize]) -> Result<Option<String>> {
    let (me, _) = fixture.rank_and_size()?;
    let position = expected.iter().position(|rank| *rank == me).map(|at| Rank::new(at as u32));
    let is_there = (Some(child.rank()), child.size()) == (position, expected.len());
    // The gather runs also after a failure, because the other ranks take part in it.
    let (src, all) = (ints(fixture, &[me as i32])?, ints(fixture, &vec![-1; child.size()])?);
    child.all_gather(&src, &all)?;
    child.synchronize()?;
    if !is_there {
        return Ok(Some(format!("rank {me} became {child:?} of the ranks {expected:?}")));
    }
    let expected: Vec<i32> = expected.iter().map(|rank| *rank as i32).collect();
    same(fixture, "old ranks in a split", &all, &expected)
}

fn existing(child: Option<Box<dyn Communicator>>) -> Result<Box<dyn Communicator>> {
    child.ok_or_else(|| Error::invalid("split: a color was passed, but there is no communicator"))
}

/// A tensor of `i32` on the worker's device.
pub(crate) fn ints(fixture: &mut Fixture<'_>, values: &[i32]) -> Result<Tensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    fixture.tensor(DType::I32, &bytes)
}

fn same(fixture: &mut Fixture<'_>, what: &str, tensor: &Tensor, expected: &[i32]) -> Result<Option<String>> {
    let bytes = fixture.bytes(tensor)?;
    let got: Vec<i32> = bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let (me, size) = fixture.rank_and_size()?;
    Ok((got != expected).then(|| format!("{what}: rank {me} of {size}: expected {expected:?}, got {got:?}")))
}
