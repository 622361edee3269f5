//! A tensor-parallel layer, y = relu(x·A)·B: each worker has some columns of A and the same rows of B, and one all_reduce adds up the
//! workers' parts of y. `cargo run --example tensor_parallel`

use std::ops::Range;

use disco::{Builder, CommunicatorExt, DataPlane, Reduction, Result, Session, SessionExt, Tensor, WorkerContext};

const INPUT: usize = 64;
const HIDDEN: usize = 256;
const WORKERS: usize = 4;

/// An element of the matrix of weights with this name. A program would read them from files.
fn weight(name: u8, row: usize, column: usize) -> f32 {
    ((row * usize::from(name) + row * column + column * 3) % 11) as f32 / 11.0 - 0.4
}

/// x·w, where `w` has `columns` columns.
fn product(x: &[f32], columns: usize, w: &[f32]) -> Vec<f32> {
    let column = |c| x.iter().enumerate().map(|(r, x)| x * w[r * columns + c]).sum();
    (0..columns).map(column).collect()
}

fn relu(x: Vec<f32>) -> Vec<f32> {
    x.into_iter().map(|x| x.max(0.0)).collect()
}

/// The part of `hidden` that this worker computes.
fn part(ctx: &WorkerContext) -> Range<usize> {
    let (worker, size) = (ctx.worker().index(), HIDDEN / ctx.world().size());
    worker * size..(worker + 1) * size
}

/// A part of a matrix, row by row.
fn block(rows: Range<usize>, columns: Range<usize>, name: u8) -> Vec<f32> {
    rows.flat_map(|row| columns.clone().map(move |column| weight(name, row, column))).collect()
}

fn columns_of_a(ctx: &mut WorkerContext) -> Result<Tensor> {
    let part = part(ctx);
    Tensor::from_slice(&block(0..INPUT, part.clone(), b'A'), [INPUT as i64, part.len() as i64])
}

fn rows_of_b(ctx: &mut WorkerContext) -> Result<Tensor> {
    let part = part(ctx);
    Tensor::from_slice(&block(part.clone(), 0..INPUT, b'B'), [part.len() as i64, INPUT as i64])
}

fn layer(ctx: &mut WorkerContext, x: Tensor, a: Tensor, b: Tensor) -> Result<Tensor> {
    let hidden = relu(product(&x.view()?, part(ctx).len(), &a.view()?));
    let y = Tensor::from_slice(&product(&hidden, INPUT, &b.view()?), [INPUT as i64])?;
    ctx.comm()?.all_reduce_in_place(&y, Reduction::Sum)?;
    Ok(y)
}

disco::register_function!("example.columns_of_a", columns_of_a);
disco::register_function!("example.rows_of_b", rows_of_b);
disco::register_function!("example.layer", layer);

fn main() -> Result<()> {
    let x: Vec<f32> = (0..INPUT).map(|i| i as f32 / INPUT as f32).collect();
    let session = Builder::threads(WORKERS).start()?;
    let y = disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        let a = session.call(&session.function("example.columns_of_a").await?, ()).await?;
        let b = session.call(&session.function("example.rows_of_b").await?, ()).await?;
        let x = Tensor::from_slice(&x, [INPUT as i64])?;
        let y = session.call(&session.function("example.layer").await?, (&x, &a, &b)).await?;
        let y: Tensor = session.get_as(&y, 0.into()).await?;
        session.shutdown().await?;
        y.to_vec::<f32>()
    })?;

    // The same without workers.
    let hidden = relu(product(&x, HIDDEN, &block(0..INPUT, 0..HIDDEN, b'A')));
    let expected = product(&hidden, INPUT, &block(0..HIDDEN, 0..INPUT, b'B'));
    let error = y.iter().zip(&expected).map(|(y, expected)| (y - expected).abs()).fold(0.0, f32::max);
    assert!(error < 1e-3, "the layer on {WORKERS} workers differs by {error}");
    println!("{WORKERS} workers: y[0] = {:.4}; largest difference from one worker {error:.1e}", y[0]);
    Ok(())
}
