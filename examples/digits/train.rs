//! Data-parallel training: every worker has the same weights and its share of each batch.
//!
//! ```text
//! broadcast weights, scatter rows
//! for each batch:  digits.backward   each worker: loss and gradients of its rows
//!                  digits.average    … of the whole batch, on all workers: one all-reduce
//!                  digits.update     each worker: the same step
//! after an epoch:  digits.predict, gather_to_worker0
//! ```

use std::time::{Duration, Instant};

use disco::{
    CommunicatorExt, DRef, DType, DataPlane, Element, Error, Placement, Reduction, Result, Scope, Session, SessionExt,
    Tensor, WorkerContext,
};

use crate::data::{BATCH, Dataset, PIXELS};
use crate::model::{self, PARAMETERS};

const LEARNING_RATE: f32 = 0.1;
const MOMENTUM: f32 = 0.8;
const SEED: u64 = 0;

/// What one epoch came to.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Epoch {
    /// Mean over the batches, each before its step.
    pub(crate) loss: f32,
    /// Part of the held-out images that are recognised afterwards.
    pub(crate) accuracy: f64,
}

/// What training came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The loss of each step.
    pub(crate) losses: Vec<f32>,
    /// One an epoch.
    pub(crate) epochs: Vec<Epoch>,
    /// Images trained on per second, each counted once an epoch.
    pub(crate) images_per_second: f64,
    /// Bytes of the tensor of each all-reduce.
    pub(crate) bytes_per_step: usize,
    /// Time that training took, without the look at the held-out images.
    pub(crate) time: Duration,
    /// Part of that time in which a worker is inside all-reduces, or waits for other workers there; the mean of all workers.
    pub(crate) time_in_collectives: Duration,
}

/// Writes the gradients of this worker's rows of a batch to `step`, and their loss behind them.
fn backward(
    ctx: &mut WorkerContext,
    params: Tensor,
    pixels: Tensor,
    labels: Tensor,
    step: Tensor,
    batch: usize,
) -> Result<()> {
    let [params, pixels, labels] = down(ctx, [&params, &row(&pixels, batch)?, &row(&labels, batch)?])?;
    let result = mirror(&step)?;
    {
        let mut step = result.view_mut::<f32>()?;
        let (grads, loss) = step.split_at_mut(PARAMETERS);
        let (pixels, labels) = (pixels.view::<f32>()?, labels.view::<u8>()?);
        loss[0] = model::loss_and_gradients(&params.view::<f32>()?, &pixels, &labels, grads);
    }
    up(ctx, [(&step, &result)])
}

/// Averages gradients and loss over all workers. Returns the seconds that this worker has spent so, with those `before`.
fn average(ctx: &mut WorkerContext, step: Tensor, before: f64) -> Result<f64> {
    let start = Instant::now();
    let comm = ctx.comm()?;
    comm.all_reduce_in_place(&step, Reduction::Avg)?;
    comm.synchronize()?;
    Ok(before + start.elapsed().as_secs_f64())
}

/// No time has been spent so far.
fn start_clock(_: &mut WorkerContext) -> Result<f64> {
    Ok(0.0)
}

/// Takes one step, and notes its loss as number `at` of the curve.
fn update(
    ctx: &mut WorkerContext,
    params: Tensor,
    velocity: Tensor,
    step: Tensor,
    curve: Tensor,
    at: usize,
) -> Result<()> {
    let noted = curve.window(at, [1])?;
    let [new_params, new_velocity, step, loss] = down(ctx, [&params, &velocity, &step, &noted])?;
    {
        let step = step.view::<f32>()?;
        let (grads, mean) = step.split_at(PARAMETERS);
        let (mut params, mut velocity) = (new_params.view_mut::<f32>()?, new_velocity.view_mut::<f32>()?);
        model::sgd(&mut params, &mut velocity, grads, LEARNING_RATE, MOMENTUM);
        loss.write(mean)?;
    }
    up(ctx, [(&params, &new_params), (&velocity, &new_velocity), (&noted, &loss)])
}

/// The digits that this worker sees in its images.
fn predict(ctx: &mut WorkerContext, params: Tensor, pixels: Tensor, digits: Tensor) -> Result<()> {
    let [params, pixels] = down(ctx, [&params, &pixels])?;
    let seen = mirror(&digits)?;
    seen.write(&model::predict(&params.view::<f32>()?, &pixels.view::<f32>()?))?;
    up(ctx, [(&digits, &seen)])
}

/// The same on the host, where this model is computed: a host tensor is its own mirror.
fn mirror(tensor: &Tensor) -> Result<Tensor> {
    match tensor.device().is_host() {
        true => Ok(tensor.clone()),
        false => Tensor::zeros(tensor.dtype(), tensor.shape().clone()),
    }
}

/// Mirrors with the elements in them.
fn down<const N: usize>(ctx: &mut WorkerContext, tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let mut mirrors = tensors.map(Tensor::clone);
    for (mirror_of, tensor) in mirrors.iter_mut().zip(tensors).filter(|(_, tensor)| !tensor.device().is_host()) {
        *mirror_of = mirror(tensor)?;
        ctx.queue().copy_out(mirror_of, tensor)?;
    }
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    Ok(mirrors)
}

/// What mirrors hold goes to their tensors.
fn up<const N: usize>(ctx: &mut WorkerContext, tensors: [(&Tensor, &Tensor); N]) -> Result<()> {
    let mut apart = tensors.into_iter().filter(|(tensor, _)| !tensor.device().is_host());
    apart.try_for_each(|(tensor, mirror)| ctx.queue().copy_in(tensor, mirror))
}

disco::register_function!("digits.backward", backward);
disco::register_function!("digits.average", average);
disco::register_function!("digits.start_clock", start_clock);
disco::register_function!("digits.update", update);
disco::register_function!("digits.predict", predict);

/// Part `index` along the first axis.
fn row(tensor: &Tensor, index: usize) -> Result<Tensor> {
    let shape = &tensor.shape()[1..];
    let len = shape.iter().product::<i64>() as usize;
    tensor.window(index * len, shape)
}

/// Trains on the session's workers, which have communicators, and reports after each epoch.
///
/// # Errors
/// The number of workers does not divide a batch, and whatever fails on the way.
pub(crate) async fn train(
    session: &dyn Session,
    (data, held_out): (&Dataset, &Dataset),
    epochs: usize,
    mut report: impl FnMut(usize, &Epoch),
) -> Result<Outcome> {
    let workers = session.world().size();
    if !BATCH.is_multiple_of(workers) {
        return Err(Error::Invalid(format!("{workers} workers can't share batches of {BATCH} rows equally")));
    }
    let (batches, share) = (data.rows() / BATCH, BATCH / workers);
    let params = everywhere(session, &model::init(SEED)).await?;
    let velocity = session.empty(DType::F32, [PARAMETERS as i64], Placement::All).await?;
    let step = session.empty(DType::F32, [PARAMETERS as i64 + 1], Placement::All).await?;
    let curve = session.empty(DType::F32, [batches as i64], Placement::All).await?;
    let pixels =
        scattered(session, &by_worker(&data.pixels, PIXELS, batches, workers), [batches, share, PIXELS]).await?;
    let labels = scattered(session, &by_worker(&data.labels, 1, batches, workers), [batches, share, 1]).await?;
    let test = Test::new(session, held_out).await?;
    let (backward, update) = (session.function("digits.backward").await?, session.function("digits.update").await?);
    let average = session.function("digits.average").await?;
    let mut in_collectives = session.call_named("digits.start_clock", ()).await?;

    let host_curve = Tensor::zeros(DType::F32, [batches as i64])?;
    let (mut losses, mut results, mut time) = (Vec::new(), Vec::with_capacity(epochs), Duration::ZERO);
    for epoch in 0..epochs {
        let start = Instant::now();
        for batch in 0..batches as i64 {
            session.call(&backward, (&params, &pixels, &labels, &step, batch)).await?;
            in_collectives = session.call(&average, (&step, &in_collectives)).await?;
            session.call(&update, (&params, &velocity, &step, &curve, batch)).await?;
        }
        session.copy_from_worker_0(&host_curve, &curve).await?;
        session.sync_all().await?;
        time += start.elapsed();
        let curve = host_curve.to_vec::<f32>()?;
        let loss = curve.iter().sum::<f32>() / batches as f32;
        losses.extend(curve);
        results.push(Epoch { loss, accuracy: test.accuracy(session, &params).await? });
        report(epoch, &results[epoch]);
    }
    let seconds: f64 = session.get_all_as::<f64>(&in_collectives).await?.iter().sum();
    Ok(Outcome {
        losses,
        epochs: results,
        images_per_second: (epochs * batches * BATCH) as f64 / time.as_secs_f64(),
        bytes_per_step: (PARAMETERS + 1) * size_of::<f32>(),
        time,
        time_in_collectives: Duration::from_secs_f64(seconds / workers as f64),
    })
}

/// The images that are not trained on.
struct Test {
    labels: Vec<u8>,
    pixels: DRef,
    digits: DRef,
    gathered: DRef,
    host: Tensor,
    predict: DRef,
}

impl Test {
    /// Gives each worker an equal share; the last ones get some blank images.
    async fn new(session: &dyn Session, data: &Dataset) -> Result<Self> {
        let workers = session.world().size();
        let share = data.rows().div_ceil(workers);
        let mut pixels = data.pixels.clone();
        pixels.resize(workers * share * PIXELS, 0.0);
        Ok(Self {
            labels: data.labels.clone(),
            pixels: scattered(session, &pixels, [share, PIXELS, 1]).await?,
            digits: session.empty(DType::U8, [share as i64], Placement::All).await?,
            gathered: session.empty(DType::U8, [(workers * share) as i64], Placement::Worker0).await?,
            host: Tensor::zeros(DType::U8, [(workers * share) as i64])?,
            predict: session.function("digits.predict").await?,
        })
    }

    async fn accuracy(&self, session: &dyn Session, params: &DRef) -> Result<f64> {
        session.call(&self.predict, (params, &self.pixels, &self.digits)).await?;
        session.gather_to_worker0(&self.digits, &self.gathered, Scope::World).await?;
        session.copy_from_worker_0(&self.host, &self.gathered).await?;
        session.sync_all().await?;
        let digits = self.host.view::<u8>()?;
        let right = self.labels.iter().zip(digits.iter()).filter(|(label, digit)| label == digit).count();
        Ok(right as f64 / self.labels.len() as f64)
    }
}

/// The same elements on every worker.
async fn everywhere(session: &dyn Session, elements: &[f32]) -> Result<DRef> {
    let len = [elements.len() as i64];
    let there = session.empty(DType::F32, len, Placement::All).await?;
    session.broadcast(&Tensor::from_slice(elements, len)?, &there).await?;
    Ok(there)
}

/// An equal part of `elements`, of this shape, on each worker.
async fn scattered<T: Element>(session: &dyn Session, elements: &[T], shape: [usize; 3]) -> Result<DRef> {
    let there = session.empty(T::DTYPE, shape.map(|dim| dim as i64), Placement::All).await?;
    session.scatter(&Tensor::from_slice(elements, [elements.len() as i64])?, &there).await?;
    Ok(there)
}

/// Reorders rows of `width` elements so that each worker's share of every whole batch lies together.
fn by_worker<T: Copy>(rows: &[T], width: usize, batches: usize, workers: usize) -> Vec<T> {
    let share = BATCH / workers * width;
    let batch_of = |worker: usize, batch: usize| batch * BATCH * width + worker * share;
    let firsts = (0..workers).flat_map(|worker| (0..batches).map(move |batch| batch_of(worker, batch)));
    firsts.flat_map(|first| &rows[first..first + share]).copied().collect()
}
