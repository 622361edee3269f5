//! The two products. Each is compared with the same product without overlap, by a collective.
//!
//! Blocks are multiplied on the host, in plain loops, so that the example needs no library for GPUs. A real program
//! replaces the loops by a GEMM on the worker's stream, and nothing else changes: the worker's stream waits for the
//! block that it needs, while the side stream copies the next blocks.

use disco::nccl::p2p::Workspace;
use disco::{CommunicatorExt as _, DType, Rank, Reduction, Tensor, WorkerContext, nccl};

disco::register_function!("example.all_gather_matmul", all_gather_matmul);
disco::register_function!("example.matmul_reduce_scatter", matmul_reduce_scatter);

/// A matrix in row-major order.
struct Matrix {
    columns: usize,
    numbers: Vec<f32>,
}

impl Matrix {
    /// A matrix of small integers, so that sums of products are exact in any order.
    fn new(rows: usize, columns: usize, seed: usize) -> Self {
        let number = |at: usize| ((at * 7 + seed * 5) % 11) as f32 - 5.0;
        Self { columns, numbers: (0..rows * columns).map(number).collect() }
    }

    fn rows(&self) -> usize {
        self.numbers.len() / self.columns
    }

    fn times(&self, other: &Self) -> Self {
        let mut numbers = vec![0.0; self.rows() * other.columns];
        for (row, out) in self.numbers.chunks_exact(self.columns).zip(numbers.chunks_exact_mut(other.columns)) {
            for (factor, line) in row.iter().zip(other.numbers.chunks_exact(other.columns)) {
                out.iter_mut().zip(line).for_each(|(out, number)| *out += factor * number);
            }
        }
        Self { columns: other.columns, numbers }
    }

    /// The rows from `from` on.
    fn block(&self, from: usize, rows: usize) -> Self {
        let range = from * self.columns..(from + rows) * self.columns;
        Self { columns: self.columns, numbers: self.numbers[range].to_vec() }
    }

    fn to_device(&self, ctx: &mut WorkerContext) -> disco::Result<Tensor> {
        let shape = [self.numbers.len() as i64];
        let tensor = ctx.empty(DType::F32, shape)?;
        ctx.queue().copy_in(&tensor, &Tensor::from_slice(&self.numbers, shape)?).map(|()| tensor)
    }

    /// Copies a tensor to the host, after the earlier work of the worker's stream.
    fn from_device(ctx: &mut WorkerContext, tensor: &Tensor, columns: usize) -> disco::Result<Self> {
        let host = Tensor::zeros(DType::F32, tensor.shape().clone())?;
        ctx.queue().copy_out(&host, tensor)?;
        let deadline = ctx.deadline();
        ctx.queue().synchronize(deadline)?;
        Ok(Self { columns, numbers: host.to_vec()? })
    }
}

/// The memory that ranks share, which must hold `blocks` blocks of `bytes` bytes in each rank's buffer.
fn workspace(ctx: &mut WorkerContext, blocks: usize, bytes: usize) -> disco::Result<Workspace> {
    let shared = nccl::extension(ctx.comm()?)?.p2p_fast_path()?.workspace()?.clone();
    if blocks * bytes <= shared.bytes() {
        Ok(shared)
    } else {
        Err(disco::Error::Invalid(format!("set DISCO_P2P_BUFFER to at least {}", blocks * bytes)))
    }
}

fn rank(index: usize) -> Rank {
    Rank::new(index as u32)
}

/// Each rank has some rows of A and a B of its own, and computes all rows of A times B. While it multiplies a block of
/// rows, it fetches the next block.
fn all_gather_matmul(ctx: &mut WorkerContext, rows: usize, inner: usize, columns: usize) -> disco::Result<()> {
    let (own, size) = (ctx.worker().index(), ctx.world().size());
    let (a, b) = (Matrix::new(rows, inner, own), Matrix::new(inner, columns, 100 + own));
    let shared = workspace(ctx, 1, rows * inner * size_of::<f32>())?;
    let mine = a.to_device(ctx)?;
    let (main, side) = (shared.main(), shared.side()?);

    main.put(&mine, rank(own), 0)?;
    main.barrier()?;
    side.after(&main)?;
    // At each step, every rank fetches from another peer.
    let order: Vec<usize> = (1..size).map(|step| (own + step) % size).collect();
    let blocks: Vec<Tensor> =
        order.iter().map(|_| ctx.empty(DType::F32, [(rows * inner) as i64])).collect::<disco::Result<_>>()?;
    // The worker's stream fills new tensors with zeros; copies of the side stream come after that.
    side.after(&main)?;
    let fetch = |step: usize| match order.get(step) {
        Some(peer) => side.get(&blocks[step], rank(*peer), 0),
        None => Ok(()),
    };
    let mut product = vec![Vec::new(); size];
    fetch(0)?;
    product[own] = a.times(&b).numbers;
    for (step, peer) in order.iter().enumerate() {
        main.after(&side)?;
        fetch(step + 1)?;
        product[*peer] = Matrix::from_device(ctx, &blocks[step], inner)?.times(&b).numbers;
    }
    // No rank writes to its buffer again before all ranks have read it.
    main.barrier()?;

    let all = ctx.empty(DType::F32, [(size * rows * inner) as i64])?;
    ctx.comm()?.all_gather(&mine, &all)?;
    let expected = Matrix::from_device(ctx, &all, inner)?.times(&b);
    check("all_gather and product", &product.concat(), &expected.numbers)
}

/// Each rank has some columns of A and the same rows of B, and computes its share of the rows of the sum of all
/// products. While it multiplies a block, the previous block is sent to its rank.
fn matmul_reduce_scatter(ctx: &mut WorkerContext, rows: usize, inner: usize, columns: usize) -> disco::Result<()> {
    let (own, size) = (ctx.worker().index(), ctx.world().size());
    let (a, b) = (Matrix::new(size * rows, inner, own), Matrix::new(inner, columns, 100 + own));
    let bytes = rows * columns * size_of::<f32>();
    let shared = workspace(ctx, size, bytes)?;
    let (main, side) = (shared.main(), shared.side()?);

    // All ranks have read what earlier operations left in their buffers.
    main.barrier()?;
    side.after(&main)?;
    let part = |peer: usize| a.block(peer * rows, rows).times(&b);
    for peer in (1..size).map(|step| (own + step) % size) {
        let block = part(peer).to_device(ctx)?;
        side.after(&main)?;
        // Each rank has a slot of its own in the peer's buffer.
        side.put(&block, rank(peer), own * bytes)?;
        side.signal(rank(peer), 0)?;
    }
    let mut sum = part(own);
    for peer in (1..size).map(|step| (own + size - step) % size) {
        main.wait(rank(peer), 0)?;
        let theirs = shared.p2p_buffer(rank(own), peer * bytes, [(rows * columns) as i64], DType::F32)?;
        let theirs = Matrix::from_device(ctx, &theirs, columns)?;
        sum.numbers.iter_mut().zip(theirs.numbers).for_each(|(sum, number)| *sum += number);
    }

    let product = a.times(&b).to_device(ctx)?;
    let scattered = ctx.empty(DType::F32, [(rows * columns) as i64])?;
    ctx.comm()?.reduce_scatter(&product, &scattered, Reduction::Sum)?;
    let expected = Matrix::from_device(ctx, &scattered, columns)?;
    check("product and reduce_scatter", &sum.numbers, &expected.numbers)
}

fn check(what: &str, found: &[f32], expected: &[f32]) -> disco::Result<()> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None if found.len() == expected.len() => Ok(()),
        at => Err(disco::Error::Invalid(format!(
            "{what}: the results with and without overlap differ, first at element {at:?}"
        ))),
    }
}
