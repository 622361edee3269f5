//! Data-parallel training: every worker has the same weights and its share of each batch.
//!
//! ```text
//! broadcast weights, scatter rows
//! for each batch:  digits.backward   each worker: loss and gradients of its rows
//!                  digits.average    … of the whole batch, on all workers: one all-reduce
//!                  digits.update     each worker: the same step
//! after an epoch:  digits.predict, gather_to; a checkpoint, which is written during the next epoch
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use disco::error::ErrorKind;
use disco::{
    CommunicatorExt, DRef, DType, Element, Error, Placement, Rank, Reduction, Result, Scope, Session, Tensor,
    WorkerContext,
};

use super::checkpoints::{self, Results, State};
use super::data::{BATCH, Dataset, PIXELS};
use super::model::{self, PARAMETERS};

const LEARNING_RATE: f32 = 0.1;
const MOMENTUM: f32 = 0.8;
const SEED: u64 = 0;

/// A failure of the training or of a checkpoint.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The result of one epoch.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Epoch {
    /// Mean loss of the batches, each before its step.
    pub(crate) loss: f32,
    /// Fraction of the test images that the network recognises after the epoch.
    pub(crate) accuracy: f64,
}

/// The result of the training.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The loss of each step.
    pub(crate) losses: Vec<f32>,
    /// The results of the epochs.
    pub(crate) epochs: Vec<Epoch>,
    /// Training images per second; each image counts once in each epoch.
    pub(crate) images_per_second: f64,
    /// Bytes of the tensor of each all-reduce.
    pub(crate) bytes_per_step: usize,
    /// Time of the training, without the tests after each epoch.
    pub(crate) time: Duration,
    /// Time that a worker spent in all-reduces, with waits for other workers; the mean over all workers.
    pub(crate) time_in_collectives: Duration,
}

/// Worker function: writes the gradients of this worker's rows of a batch to `step`, followed by their loss.
fn backward(
    ctx: &mut WorkerContext,
    params: Tensor,
    pixels: Tensor,
    labels: Tensor,
    step: Tensor,
    batch: usize,
) -> Result<()> {
    let [params, pixels, labels] = to_host(ctx, [&params, &row(&pixels, batch)?, &row(&labels, batch)?])?;
    let result = host_buffer(&step)?;
    {
        let mut step = result.view_mut::<f32>()?;
        let (grads, loss) = step.split_at_mut(PARAMETERS);
        let (pixels, labels) = (pixels.view::<f32>()?, labels.view::<u8>()?);
        loss[0] = model::loss_and_gradients(&params.view::<f32>()?, &pixels, &labels, grads);
    }
    from_host(ctx, [(&step, &result)])
}

/// Worker function: averages gradients and loss over all workers. Returns `before` plus the seconds of this call.
fn average(ctx: &mut WorkerContext, step: Tensor, before: f64) -> Result<f64> {
    let start = Instant::now();
    let comm = ctx.comm()?;
    comm.all_reduce_in_place(&step, Reduction::Avg)?;
    comm.synchronize()?;
    Ok(before + start.elapsed().as_secs_f64())
}

/// Worker function: the first value for `before` of [`average`].
fn start_clock(_: &mut WorkerContext) -> Result<f64> {
    Ok(0.0)
}

/// Worker function: updates the parameters, and writes the loss to element `at` of `curve`.
fn update(
    ctx: &mut WorkerContext,
    params: Tensor,
    velocity: Tensor,
    step: Tensor,
    curve: Tensor,
    at: usize,
) -> Result<()> {
    let element = curve.window(at, [1])?;
    let [new_params, new_velocity, step, loss] = to_host(ctx, [&params, &velocity, &step, &element])?;
    {
        let step = step.view::<f32>()?;
        let (grads, mean) = step.split_at(PARAMETERS);
        let (mut params, mut velocity) = (new_params.view_mut::<f32>()?, new_velocity.view_mut::<f32>()?);
        model::sgd(&mut params, &mut velocity, grads, LEARNING_RATE, MOMENTUM);
        loss.write(mean)?;
    }
    from_host(ctx, [(&params, &new_params), (&velocity, &new_velocity), (&element, &loss)])
}

/// Worker function: writes the predictions for this worker's images to `digits`.
fn predict(ctx: &mut WorkerContext, params: Tensor, pixels: Tensor, digits: Tensor) -> Result<()> {
    let [params, pixels] = to_host(ctx, [&params, &pixels])?;
    let predicted = host_buffer(&digits)?;
    predicted.write(&model::predict(&params.view::<f32>()?, &pixels.view::<f32>()?))?;
    from_host(ctx, [(&digits, &predicted)])
}

/// A host tensor of the same shape: the model is computed on the host. For a host tensor, the tensor itself.
fn host_buffer(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_host() { Ok(tensor.clone()) } else { Tensor::zeros(tensor.dtype(), tensor.shape().clone()) }
}

/// Copies tensors to the host. Host tensors are returned as they are.
fn to_host<const N: usize>(ctx: &mut WorkerContext, tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let mut copies = tensors.map(Tensor::clone);
    for (copy, tensor) in copies.iter_mut().zip(tensors).filter(|(_, tensor)| !tensor.device().is_host()) {
        *copy = host_buffer(tensor)?;
        ctx.queue().copy_out(copy, tensor)?;
    }
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)?;
    Ok(copies)
}

/// Copies host tensors back to their tensors: pairs of a tensor and its host tensor.
fn from_host<const N: usize>(ctx: &mut WorkerContext, tensors: [(&Tensor, &Tensor); N]) -> Result<()> {
    let mut on_devices = tensors.into_iter().filter(|(tensor, _)| !tensor.device().is_host());
    on_devices.try_for_each(|(tensor, host)| ctx.queue().copy_in(tensor, host))
}

disco::register_function!("digits.backward", backward);
disco::register_function!("digits.average", average);
disco::register_function!("digits.start_clock", start_clock);
disco::register_function!("digits.update", update);
disco::register_function!("digits.predict", predict);

/// The part of a tensor with this index along the first axis.
fn row(tensor: &Tensor, index: usize) -> Result<Tensor> {
    let shape = &tensor.shape()[1..];
    let len = shape.iter().product::<i64>() as usize;
    tensor.window(index * len, shape)
}

/// Trains on the workers of a session after `init_ccl` until `epochs` epochs are complete, and calls `report` after each.
/// With a folder, the training continues from the newest checkpoint there, and saves a checkpoint after each epoch.
///
/// # Errors
/// The number of workers does not divide a batch; failures of the session and of checkpoints.
pub(crate) async fn train(
    session: &dyn Session,
    (data, held_out): (&Dataset, &Dataset),
    epochs: usize,
    folder: Option<&Path>,
    mut report: impl FnMut(usize, &Epoch),
) -> Result<Outcome, Failure> {
    let workers = session.world().size();
    if !BATCH.is_multiple_of(workers) {
        return Err(Error::Invalid(format!("{workers} workers can't share batches of {BATCH} rows equally")).into());
    }
    let (batches, share) = (data.rows() / BATCH, BATCH / workers);
    let mut state = start(session, folder).await?;
    let step = session.empty(DType::F32, [PARAMETERS as i64 + 1], Placement::All).await?;
    let curve = session.empty(DType::F32, [batches as i64], Placement::All).await?;
    let (pixels, labels) = scatter_data(session, data, [batches, share]).await?;
    let test = Test::new(session, held_out).await?;
    let (backward, update) = (session.function("digits.backward").await?, session.function("digits.update").await?);
    let average = session.function("digits.average").await?;
    let mut in_collectives = session.call("digits.start_clock", ()).await?;
    let host_curve = Tensor::zeros(DType::F32, [batches as i64])?;
    let (mut images, mut time, mut saving) = (0, Duration::ZERO, None);
    for epoch in state.results.epochs.len()..epochs {
        let start = Instant::now();
        for batch in 0..batches as i64 {
            session.call(&backward, (&state.params, &pixels, &labels, &step, batch)).await?;
            in_collectives = session.call(&average, (&step, &in_collectives)).await?;
            session.call(&update, (&state.params, &state.velocity, &step, &curve, batch)).await?;
        }
        session.copy_from_worker_0(&host_curve, &curve).await?;
        session.sync_all().await?;
        time += start.elapsed();
        images += batches * BATCH;
        let curve = host_curve.to_vec::<f32>()?;
        let loss = curve.iter().sum::<f32>() / batches as f32;
        let result = Epoch { loss, accuracy: test.accuracy(session, &state.params).await? };
        state.results.losses.extend(curve);
        state.results.epochs.push(result);
        if let Some(folder) = folder {
            if let Some(before) = saving.take() {
                before.await?;
            }
            saving = Some(checkpoints::save(session, folder, &state).await?);
        }
        report(epoch, &result);
    }
    if let Some(last) = saving {
        last.await?;
    }
    let seconds: f64 = session.get_all::<f64>(&in_collectives).await?.iter().sum();
    let Results { losses, epochs } = state.results;
    Ok(Outcome {
        losses,
        epochs,
        images_per_second: images as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE),
        bytes_per_step: (PARAMETERS + 1) * size_of::<f32>(),
        time,
        time_in_collectives: Duration::from_secs_f64(seconds / workers as f64),
    })
}

/// The pixels and labels of each worker's share of every batch.
async fn scatter_data(
    session: &dyn Session,
    data: &Dataset,
    [batches, share]: [usize; 2],
) -> Result<(DRef, DRef), Failure> {
    let workers = session.world().size();
    let pixels = by_worker(&data.pixels, PIXELS, batches, workers);
    let labels = by_worker(&data.labels, 1, batches, workers);
    let pixels = scattered(session, &pixels, [batches, share, PIXELS]).await?;
    Ok((pixels, scattered(session, &labels, [batches, share, 1]).await?))
}

/// Whether the training has failed because workers are lost. A worker may notice the end of another one before the
/// controller does, and a checkpoint may fail with it.
pub(crate) fn is_loss(failure: &Failure) -> bool {
    matches!(ErrorKind::of(&**failure), ErrorKind::Lost { .. })
}

/// Replaces lost workers, and connects all workers.
///
/// # Errors
/// More workers are lost; they can't be replaced.
pub(crate) async fn replace(session: &dyn Session, backend: &str, devices: &[i32]) -> Result<(), Failure> {
    session.replace_lost().await?;
    session.init_ccl(backend, devices).await?;
    Ok(())
}

/// The state of the newest checkpoint, or of a new training.
async fn start(session: &dyn Session, folder: Option<&Path>) -> Result<State, Failure> {
    if let Some(folder) = folder
        && let Some(state) = checkpoints::load(session, folder).await?
    {
        return Ok(state);
    }
    let params = replicated(session, &model::init(SEED)).await?;
    let velocity = session.empty(DType::F32, [PARAMETERS as i64], Placement::All).await?;
    Ok(State { params, velocity, results: Results::default() })
}

/// The test images, distributed over the workers.
struct Test {
    labels: Vec<u8>,
    pixels: DRef,
    digits: DRef,
    gathered: DRef,
    host: Tensor,
    predict: DRef,
}

impl Test {
    /// Gives each worker the same number of images; blank images fill up the last shares.
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
        session.gather_to(&self.digits, &self.gathered, Rank::new(0), Scope::World).await?;
        session.copy_from_worker_0(&self.host, &self.gathered).await?;
        session.sync_all().await?;
        let digits = self.host.view::<u8>()?;
        let right = self.labels.iter().zip(digits.iter()).filter(|(label, digit)| label == digit).count();
        Ok(right as f64 / self.labels.len() as f64)
    }
}

/// Makes a tensor with the same elements on every worker.
async fn replicated(session: &dyn Session, elements: &[f32]) -> Result<DRef> {
    let len = [elements.len() as i64];
    let there = session.empty(DType::F32, len, Placement::All).await?;
    session.broadcast(&Tensor::from_slice(elements, len)?, &there).await?;
    Ok(there)
}

/// Makes a tensor of this shape on each worker, with an equal part of `elements`.
async fn scattered<T: Element>(session: &dyn Session, elements: &[T], shape: [usize; 3]) -> Result<DRef> {
    let there = session.empty(T::DTYPE, shape.map(|dim| dim as i64), Placement::All).await?;
    session.scatter(&Tensor::from_slice(elements, [elements.len() as i64])?, &there).await?;
    Ok(there)
}

/// Reorders rows of `width` elements by worker: first the rows of worker 0 in all batches, then those of worker 1, and
/// so on.
fn by_worker<T: Copy>(rows: &[T], width: usize, batches: usize, workers: usize) -> Vec<T> {
    let share = BATCH / workers * width;
    let batch_of = |worker: usize, batch: usize| batch * BATCH * width + worker * share;
    let firsts = (0..workers).flat_map(|worker| (0..batches).map(move |batch| batch_of(worker, batch)));
    firsts.flat_map(|first| &rows[first..first + share]).copied().collect()
}
