//! The workers' side of a replay: worker functions that stand in for those of the recorded program.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::hint;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco::function::{BoxError, Function};
use disco::{DType, Error, Object, Op, OpKind, Opaque, Rank, Reduction, Shape, Tensor, Value, WorkerContext};
use disco_trace::command_log::Described;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, PlannedOp, Step};
use super::values::Values;

/// Makes the player of a worker from the bytes of its plan.
pub(super) const PLAYER: &str = "disco-cli.replay.player";
/// Makes the stand-in for a function.
pub(super) const STAND_IN: &str = "disco-cli.replay.stand_in";
/// Looks up a function that is not replaced.
pub(super) const REAL: &str = "disco-cli.replay.real";
/// Returns the measurements of a player, as JSON.
pub(super) const MEASURED: &str = "disco-cli.replay.measured";

/// Pauses shorter than this spin, and so does the end of longer pauses: a sleep takes some 60 µs longer than its argument.
const SPIN: Duration = Duration::from_micros(100);

/// The measurements of a worker.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// By the names of functions.
    pub(super) functions: BTreeMap<String, Sum>,
    /// By the names of operations.
    pub(super) ops: BTreeMap<String, Sum>,
}

/// Number of calls and their duration.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) ns: u64,
}

impl Sum {
    pub(super) fn add(&mut self, ns: u64) {
        *self = self.plus(Self { count: 1, ns });
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { count: self.count + other.count, ns: self.ns.saturating_add(other.ns) }
    }
}

/// Plays the plan of a worker, call by call.
struct Player {
    plan: Plan,
    next: Cell<usize>,
    /// Tensors of operations, by element type, number of elements, whether operations write them, and the operation's
    /// place in its group: operations of one group need tensors of their own.
    tensors: RefCell<HashMap<(DType, usize, bool, usize), Tensor>>,
    functions: RefCell<Vec<(String, Sum)>>,
    ops: RefCell<BTreeMap<&'static str, Sum>>,
}

fn player(_: &mut WorkerContext, plan: Arc<[u8]>) -> Result<Opaque, serde_json::Error> {
    let plan = serde_json::from_slice(&plan)?;
    let (next, tensors) = (Cell::new(0), RefCell::default());
    Ok(Opaque::new(Player { plan, next, tensors, functions: RefCell::default(), ops: RefCell::default() }))
}

fn stand_in(_: &mut WorkerContext, player: Rc<Player>, name: String) -> disco::Result<Function> {
    let mut functions = player.functions.borrow_mut();
    let index = functions.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        functions.push((name.clone(), Sum::default()));
        functions.len() - 1
    });
    drop(functions);
    Ok(Function::new(name, move |ctx, _| player.play(ctx, index)))
}

fn real(_: &mut WorkerContext, name: String) -> disco::Result<Function> {
    disco_core::function::find(&name)
}

fn measured(_: &mut WorkerContext, player: Rc<Player>) -> Result<String, serde_json::Error> {
    let functions = player.functions.borrow().iter().cloned().collect();
    let ops = player.ops.borrow().iter().map(|(kind, sum)| ((*kind).to_owned(), *sum)).collect();
    serde_json::to_string(&Measured { functions, ops })
}

disco::register_function!(PLAYER, player);
disco::register_function!(STAND_IN, stand_in);
disco::register_function!(REAL, real);
disco::register_function!(MEASURED, measured);

impl Player {
    /// Plays the next call.
    fn play(&self, ctx: &mut WorkerContext, function: usize) -> Result<Object, BoxError> {
        let start = Instant::now();
        let call = self.next.replace(self.next.get() + 1);
        let missing = || Error::invalid(format!("the log has no call {call}"));
        let index = *self.plan.calls.get(call).ok_or_else(missing)?;
        let step = self.plan.steps.get(index as usize).ok_or_else(missing)?;
        for group in step.ops.chunk_by(|_, next| next.joins) {
            group.iter().for_each(|op| pause(Duration::from_nanos(op.after_ns), self.plan.is_busy));
            let planned = group.iter().enumerate().map(|(place, op)| self.operation(ctx, op, place));
            let (kinds, ops): (Vec<OpKind>, Vec<Op>) = planned.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
            let start = Instant::now();
            ctx.comm_in(group[0].in_group)?.enqueue(&ops)?;
            let mut sums = self.ops.borrow_mut();
            // As recorded: the first operation has the time of its group.
            let times = std::iter::once(nanoseconds(start)).chain(std::iter::repeat(0));
            kinds.iter().zip(times).for_each(|(kind, ns)| sums.entry(kind.name()).or_default().add(ns));
        }
        pause(Duration::from_nanos(step.rest_ns), self.plan.is_busy);
        let result = self.result(ctx, step)?;
        self.functions.borrow_mut()[function].1.add(nanoseconds(start));
        Ok(Object::Value(result))
    }

    fn result(&self, ctx: &mut WorkerContext, step: &Step) -> Result<Value, BoxError> {
        Ok(match &step.result {
            None => Value::None,
            Some(Described::Tensor(dtype, extents)) => ctx.empty(*dtype, Shape::from(&**extents))?.into(),
            Some(other) => Values::default().value(other)?,
        })
    }

    /// The operation with tensors of zeros.
    fn operation(&self, ctx: &mut WorkerContext, op: &PlannedOp, place: usize) -> Result<(OpKind, Op), BoxError> {
        let unknown = || Error::invalid(format!("`{}` is no operation with these arguments", op.kind));
        let kind = OpKind::ALL.into_iter().find(|kind| kind.name() == op.kind).ok_or_else(unknown)?;
        let comm = ctx.comm_in(op.in_group)?;
        let (rank, size) = (comm.rank(), comm.size());
        let root = Rank::new(op.root);
        let dtype = op.dtype.as_deref().map(str::parse::<DType>).transpose()?;
        let reduction = op.reduction.as_deref().map(str::parse::<Reduction>).transpose()?;
        let blocks = size.checked_mul(op.count).ok_or_else(unknown)?;
        let mut tensor =
            |elements, is_written| self.tensor(ctx, (dtype.ok_or_else(unknown)?, elements, is_written, place));
        let is_root = rank == root;
        let made = match kind {
            OpKind::Barrier => Op::Barrier,
            OpKind::AllReduce => {
                Op::AllReduce { src: None, dst: tensor(op.count, true)?, reduction: reduction.ok_or_else(unknown)? }
            }
            OpKind::Reduce => Op::Reduce {
                src: Some(tensor(op.count, false)?),
                dst: if is_root { Some(tensor(op.count, true)?) } else { None },
                reduction: reduction.ok_or_else(unknown)?,
                root,
            },
            OpKind::ReduceScatter => Op::ReduceScatter {
                src: Some(tensor(blocks, false)?),
                dst: tensor(op.count, true)?,
                reduction: reduction.ok_or_else(unknown)?,
            },
            OpKind::AllGather => Op::AllGather { src: Some(tensor(op.count, false)?), dst: tensor(blocks, true)? },
            OpKind::Broadcast => Op::Broadcast { src: None, dst: tensor(op.count, true)?, root },
            OpKind::Gather => Op::Gather {
                src: Some(tensor(op.count, false)?),
                dst: if is_root { Some(tensor(blocks, true)?) } else { None },
                root,
            },
            OpKind::Scatter => Op::Scatter {
                src: if is_root { Some(tensor(blocks, false)?) } else { None },
                dst: Some(tensor(op.count, true)?),
                root,
            },
            OpKind::AllToAll => Op::AllToAll { src: Some(tensor(blocks, false)?), dst: tensor(blocks, true)? },
            OpKind::AllGatherV => {
                let (mine, all) = (*op.counts.get(rank.index()).ok_or_else(unknown)?, total(&op.counts)?);
                let counts: Arc<[usize]> = op.counts.clone().into();
                Op::AllGatherV { src: Some(tensor(mine, false)?), dst: tensor(all, true)?, counts }
            }
            OpKind::AllToAllV => {
                if op.counts.len() != size {
                    return Err(unknown().into());
                }
                let send: Arc<[usize]> = (0..size).map(|to| part(op.counts[rank.index()], to, size)).collect();
                let recv: Arc<[usize]> = op.counts.iter().map(|sent| part(*sent, rank.index(), size)).collect();
                let (src, dst) = (tensor(total(&send)?, false)?, tensor(total(&recv)?, true)?);
                Op::AllToAllV { src: Some(src), send_counts: send, dst, recv_counts: recv }
            }
            OpKind::Send => Op::Send { src: tensor(op.count, false)?, to: root },
            OpKind::Recv => Op::Recv { dst: tensor(op.count, true)?, from: root },
            _ => return Err(unknown().into()),
        };
        Ok((kind, made))
    }

    fn tensor(&self, ctx: &mut WorkerContext, key: (DType, usize, bool, usize)) -> Result<Tensor, BoxError> {
        if let Some(tensor) = self.tensors.borrow().get(&key) {
            return Ok(tensor.clone());
        }
        let (dtype, elements, ..) = key;
        let tensor = ctx.empty(dtype, elements)?;
        self.tensors.borrow_mut().insert(key, tensor.clone());
        Ok(tensor)
    }
}

/// Number of elements for a rank of `size` ranks that share `count` elements. The first ranks get the rest, one each.
fn part(count: usize, rank: usize, size: usize) -> usize {
    count / size + usize::from(rank < count % size)
}

fn total(counts: &[usize]) -> Result<usize, Error> {
    let sum = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
    sum.ok_or_else(|| Error::invalid("counts of an operation are too large"))
}

fn nanoseconds(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// Sleeps for `time`, or spins if `is_busy`.
pub(super) fn pause(time: Duration, is_busy: bool) {
    let start = Instant::now();
    if let Some(sleep) = time.checked_sub(SPIN).filter(|_| !is_busy) {
        thread::sleep(sleep);
    }
    while start.elapsed() < time {
        hint::spin_loop();
    }
}
