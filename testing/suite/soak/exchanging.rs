//! Worker functions that exchange tensors: alone, by handles, and in bursts.

use std::ops::Sub;
use std::sync::Arc;

use disco::{
    Abort, Capabilities, Communicator, CommunicatorExt, DType, Element, Error, Op, Rank, Result, Scope, Tensor, Work,
    WorkerContext,
};

use super::exchange::{self, Burst, Exchange, Kind, Memory, TURN, uneven, uneven_pair};

disco::register_function!("soak.make", make);
disco::register_function!("soak.exchange", exchange_one);
disco::register_function!("soak.source", source);
disco::register_function!("soak.target", target);
disco::register_function!("soak.burst", burst);

/// Registers [`TURN`] for integers, which wrap, and for floats.
macro_rules! register_turn {
    ($($ty:ty: $minus:expr),*) => {$(
        disco::register_reduction!(TURN.name(), $ty, |into, from, row| {
            for (into, from) in into.chunks_exact_mut(row).zip(from.chunks_exact(row)) {
                into.iter_mut().enumerate().for_each(|(at, own)| *own = $minus(from[(at + 1) % row], *own));
            }
        });
    )*};
}

register_turn!(u8: u8::wrapping_sub, i16: i16::wrapping_sub, i32: i32::wrapping_sub, u32: u32::wrapping_sub);
register_turn!(i64: i64::wrapping_sub, f32: <f32 as Sub>::sub, f64: <f64 as Sub>::sub);

/// Makes a tensor of this worker's elements.
fn make(ctx: &mut WorkerContext, dtype: DType, count: usize, seed: usize, memory: usize) -> Result<Tensor> {
    let tensor = output(ctx, dtype, count, Memory::ALL[memory])?;
    let mut bytes = Vec::with_capacity(tensor.byte_len());
    let worker = ctx.worker().index();
    (0..count).for_each(|index| exchange::encode(dtype, exchange::element(worker, index, seed), &mut bytes));
    tensor.bytes_mut()?.copy_from_slice(&bytes);
    Ok(tensor)
}

fn output(ctx: &mut WorkerContext, dtype: DType, count: usize, memory: Memory) -> Result<Tensor> {
    match memory {
        Memory::Shared => ctx.empty(dtype, [count as i64]),
        Memory::Private => Tensor::zeros(dtype, [count as i64]),
        Memory::Lent => match dtype {
            DType::U8 => lent::<u8>(count),
            DType::I16 => lent::<i16>(count),
            DType::I32 => lent::<i32>(count),
            DType::U32 => lent::<u32>(count),
            DType::I64 => lent::<i64>(count),
            DType::F32 => lent::<f32>(count),
            DType::F64 => lent::<f64>(count),
            other => Err(Error::invalid(format!("{other} is not among the element types of the soak"))),
        },
    }
}

/// A tensor of a lent vector's elements, without the first: it starts at an odd address.
fn lent<T: Element + Default>(count: usize) -> Result<Tensor> {
    Tensor::from_owner(vec![T::default(); count + 1], |elements| &mut elements[1..], count)
}

/// The result of an exchange, in a new tensor.
fn exchange_one(
    ctx: &mut WorkerContext,
    x: Tensor,
    kind: usize,
    scope: usize,
    reduction: usize,
    root: usize,
    memory: usize,
) -> Result<Tensor> {
    run(ctx, x, &Exchange::from_args((kind, scope, reduction, root, memory)))
}

fn run(ctx: &mut WorkerContext, x: Tensor, exchange: &Exchange) -> Result<Tensor> {
    let mut child = None;
    let worker = ctx.worker().index();
    let scope = exchange.scope.of_session(ctx.world().size())?;
    let (me, ranks) = match &scope {
        None => {
            let comm = ctx.comm()?.split(Some(worker as u32 % 2), -(worker as i32))?.ok_or(Error::NoCommunicator)?;
            let comm = child.insert(comm);
            (comm.rank().index(), comm.size())
        }
        Some(scope) => {
            let comm = ctx.comm_in(scope)?;
            (comm.rank().index(), comm.size())
        }
    };
    let (count, dtype) = (x.elements(), x.dtype());
    let root = Rank::new((exchange.root % ranks) as u32);
    let at_root = root.index() == me;
    let elements = result_elements(exchange.kind, count, me, ranks, at_root);
    let dst = output(ctx, dtype, elements, exchange.memory)?;
    let comm = match (&mut child, &scope) {
        (Some(child), _) => &mut **child,
        (None, scope) => ctx.comm_in(scope.as_ref().unwrap_or(&Scope::World))?,
    };
    if (count + worker + exchange.root).is_multiple_of(3) {
        let mut starter = Starter { comm: &mut *comm, works: Vec::new() };
        enqueue(&mut starter, exchange, &x, &dst)?;
        starter.works.iter().try_for_each(Work::wait)?;
    } else {
        enqueue(comm, exchange, &x, &dst)?;
    }
    comm.synchronize()?;
    let keeps_input = matches!(exchange.kind, Kind::Reduce | Kind::Gather) && !at_root;
    Ok(if keeps_input || exchange.kind == Kind::Barrier { x } else { dst })
}

/// Starts all operations that are enqueued.
#[derive(Debug)]
struct Starter<'a> {
    comm: &'a mut dyn Communicator,
    works: Vec<Work>,
}

impl Communicator for Starter<'_> {
    fn rank(&self) -> Rank {
        self.comm.rank()
    }

    fn size(&self) -> usize {
        self.comm.size()
    }

    fn capabilities(&self) -> Capabilities {
        self.comm.capabilities()
    }

    fn enqueue(&mut self, ops: &[Op]) -> Result<()> {
        self.works.push(self.comm.start(ops)?);
        Ok(())
    }

    fn split(&mut self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.comm.split(color, key)
    }

    fn synchronize(&mut self) -> Result<()> {
        self.comm.synchronize()
    }

    fn aborter(&self) -> Arc<dyn Abort> {
        self.comm.aborter()
    }
}

/// Enqueues the operations of an exchange from `x` to `dst`.
fn enqueue(comm: &mut dyn Communicator, exchange: &Exchange, x: &Tensor, dst: &Tensor) -> Result<()> {
    let (me, ranks) = (comm.rank().index(), comm.size());
    let (count, block) = (x.elements(), x.elements() / ranks);
    let root = Rank::new((exchange.root % ranks) as u32);
    let at_root = root.index() == me;
    let blocks = x.window(0, [(ranks * block) as i64])?;
    let reduction = exchange.reduction;
    match exchange.kind {
        Kind::AllReduce => comm.all_reduce(&in_rows(x, count)?, &in_rows(dst, count)?, reduction)?,
        Kind::Reduce => {
            let dst = if at_root { Some(in_rows(dst, count)?) } else { None };
            comm.reduce(&in_rows(x, count)?, dst.as_ref(), reduction, root)?;
        }
        Kind::ReduceScatter => comm.reduce_scatter(&in_rows(&blocks, block)?, &in_rows(dst, block)?, reduction)?,
        Kind::AllGather => comm.all_gather(x, dst)?,
        Kind::AllGatherV => {
            let counts: Vec<usize> = (0..ranks).map(|from| uneven(from, count)).collect();
            comm.all_gather_v(&x.window(0, [counts[me] as i64])?, dst, &counts)?;
        }
        Kind::Broadcast => {
            comm.enqueue(&[Op::Broadcast { src: at_root.then(|| x.clone()), dst: dst.clone(), root }])?;
        }
        Kind::Gather => comm.gather(x, at_root.then_some(dst), root)?,
        Kind::Scatter => comm.scatter(at_root.then_some(&blocks), dst, root)?,
        Kind::AllToAll => comm.all_to_all(&blocks, dst)?,
        Kind::AllToAllV => {
            let send: Vec<usize> = (0..ranks).map(|to| uneven_pair(me, to, block)).collect();
            let recv: Vec<usize> = (0..ranks).map(|from| uneven_pair(from, me, block)).collect();
            let src = x.window(0, [send.iter().sum::<usize>() as i64])?;
            comm.all_to_all_v((&src, &send), (dst, &recv))?;
        }
        Kind::Barrier => comm.barrier()?,
        Kind::Ring => {
            let [to, from] = [me + 1, me + ranks - 1].map(|rank| Rank::new((rank % ranks) as u32));
            comm.enqueue(&[Op::Send { src: x.clone(), to }, Op::Recv { dst: dst.clone(), from }])?;
        }
        Kind::Sends => {
            let mut group = Vec::new();
            for rank in 0..ranks {
                let [src, dst] = [x, dst].map(|of| of.window(rank * block, [block as i64]));
                let peer = Rank::new(rank as u32);
                group.extend([Op::Send { src: src?, to: peer }, Op::Recv { dst: dst?, from: peer }]);
            }
            comm.enqueue(&group)?;
        }
    }
    Ok(())
}

/// The same elements with the rows of a reduction of blocks of `block` elements.
fn in_rows(tensor: &Tensor, block: usize) -> Result<Tensor> {
    let row = exchange::row(block);
    tensor.window(0, [tensor.elements() / row, row])
}

/// Number of elements that the result of an exchange has on rank `me`, whose input has `count` elements.
fn result_elements(kind: Kind, count: usize, me: usize, ranks: usize, at_root: bool) -> usize {
    let block = count / ranks;
    match kind {
        Kind::AllReduce | Kind::Reduce | Kind::Broadcast | Kind::Barrier | Kind::Ring => count,
        Kind::ReduceScatter | Kind::Scatter => block,
        Kind::AllGather => ranks * count,
        Kind::Gather => count * if at_root { ranks } else { 1 },
        Kind::AllGatherV => (0..ranks).map(|from| uneven(from, count)).sum(),
        Kind::AllToAll | Kind::Sends => ranks * block,
        Kind::AllToAllV => (0..ranks).map(|from| uneven_pair(from, me, block)).sum(),
    }
}

/// The source of an exchange by handles: the part of a tensor that it sends.
fn source(ctx: &mut WorkerContext, x: Tensor, kind: usize, scope: Scope) -> Result<Tensor> {
    let comm = ctx.comm_in(&scope)?;
    let (me, ranks) = (comm.rank().index(), comm.size());
    let block = x.elements() / ranks;
    let elements = match Kind::ALL[kind] {
        Kind::AllGatherV => uneven(me, x.elements()),
        Kind::AllToAllV => (0..ranks).map(|to| uneven_pair(me, to, block)).sum(),
        Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll => ranks * block,
        _ => x.elements(),
    };
    let block = if Kind::ALL[kind] == Kind::ReduceScatter { block } else { elements };
    by_handles(&x.window(0, [elements as i64])?, kind, block)
}

/// A tensor of an exchange by handles: in a reduction of blocks of `block` elements with rows.
fn by_handles(tensor: &Tensor, kind: usize, block: usize) -> Result<Tensor> {
    match Kind::ALL[kind] {
        Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter => in_rows(tensor, block),
        _ => Ok(tensor.clone()),
    }
}

/// The destination of an exchange by handles: a copy of the input on ranks that get no result.
fn target(ctx: &mut WorkerContext, x: Tensor, kind: usize, root: usize, scope: Scope) -> Result<Tensor> {
    let comm = ctx.comm_in(&scope)?;
    let (me, ranks) = (comm.rank().index(), comm.size());
    let (count, block) = (x.elements(), x.elements() / ranks);
    let elements = match Kind::ALL[kind] {
        Kind::Gather if me == root => ranks * count,
        Kind::AllGather => ranks * count,
        Kind::AllGatherV => (0..ranks).map(|from| uneven(from, count)).sum(),
        Kind::AllToAll => ranks * block,
        Kind::AllToAllV => (0..ranks).map(|from| uneven_pair(from, me, block)).sum(),
        Kind::ReduceScatter | Kind::Scatter => block,
        _ => count,
    };
    let target = ctx.empty(x.dtype(), [elements as i64])?;
    if elements == count {
        target.bytes_mut()?.copy_from_slice(&x.bytes()?);
    }
    by_handles(&target, kind, elements)
}

/// Runs the exchanges of a burst back to back, and returns a hash of the hashes of all results.
fn burst(ctx: &mut WorkerContext, seed: i64, exchanges: usize) -> Result<i64> {
    let bursts = Burst::draw(seed.cast_unsigned(), exchanges);
    let make = |burst: &Burst| make(ctx, burst.dtype, burst.count, burst.seed, burst.memory.number() as usize);
    let inputs: Vec<Tensor> = bursts.iter().map(make).collect::<Result<_>>()?;
    let results = bursts.iter().zip(inputs).map(|(burst, x)| run(ctx, x, &burst.exchange));
    let results: Vec<Tensor> = results.collect::<Result<_>>()?;
    let mut hashes = Vec::new();
    for result in results {
        hashes.extend(exchange::hash(&result.bytes()?).to_ne_bytes());
    }
    Ok(exchange::hash(&hashes))
}
