//! Worker functions for sequences that come and go: the controller plans each step, and the workers compute it.
//!
//! `disco.models.serve` reads the model and makes the pool of blocks for keys and values; its result, the worker's state, is the first argument
//! of `disco.models.step`, whose second argument is a [`Plan`]. Rank 0 of each copy of the model returns the [`Reply`]; other ranks return nothing. The
//! workers keep the last token of each sequence, so that the controller can plan and send the next step before it has the
//! reply of this one: commands are executed in order, and so a block that the controller takes from one sequence can be
//! given to another one in the next step.

mod digests;
mod plan;
mod slot;

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use candle_core::Tensor;
use disco_candle::Reader;
use disco_core::activity::TimeLimit;
use disco_core::function::Json;
use disco_core::{Object, Opaque, WorkerContext};
use serde::{Deserialize, Serialize};

pub use digests::Digests;
pub use plan::{Chosen, Mask, Params, Plan, Replied, Reply, Row, Sampled, Start, Tokens};
use slot::{Logprobs, Slot};

use crate::worker::{Load, open};
use crate::{ModelError, Pool, Ragged, RunState, Transformer};

/// Rows of logits that are on the host at the same time, for the logprobs of prompts.
const ROWS: usize = 64;

/// The argument of `disco.models.serve`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Serve {
    /// The model.
    pub load: Load,
    /// Number of blocks of 16 tokens.
    pub blocks: usize,
    /// Number of sequences at the same time.
    pub slots: usize,
}

impl Serve {
    /// A model with memory for so many blocks and sequences.
    pub fn new(load: Load, blocks: usize, slots: usize) -> Self {
        Self { load, blocks, slots }
    }
}

/// The state of one worker.
struct Server {
    model: Transformer,
    pool: Pool,
    /// One number: whether steps were computed with the pool. It is where the pool is, and so outlives the worker with it.
    is_used: disco_core::Tensor,
    slots: Vec<Option<Slot>>,
    reader: Reader,
}

/// The state that is in use.
#[derive(Default)]
struct Live(RefCell<Weak<RefCell<Server>>>);

/// Worker function: reads this worker's part of a model and returns the worker's state. Collective.
///
/// `kept` is the state that an earlier call has returned: a worker that has one goes on with the model, without sequences,
/// beside workers that replaced lost ones, which have none. On hosts, keys and values outlive the worker, and so do matrices:
/// `disco.models.has_memory` tells whether they are there. A session has one such state at a time.
fn serve(ctx: &mut WorkerContext, Json(serve): Json<Serve>, kept: Object) -> Result<Object, ModelError> {
    if let Object::Opaque(state) = &kept
        && let Some(server) = state.downcast::<RefCell<Server>>()
    {
        let server = &mut *server.borrow_mut();
        server.slots.iter_mut().for_each(|slot| *slot = None);
        server.model.rejoin(ctx)?;
        return Ok(kept);
    }
    let live = ctx.state::<Live>();
    if live.0.borrow().upgrade().is_some() {
        let why =
            "this worker serves a model already, whose keys and values would be overwritten: drop its state first";
        return Err(ModelError::Call(why.into()));
    }
    let (model, _) = open(ctx, &serve.load, None::<fn(u64, u64)>, true)?;
    model.config().check_generates()?;
    let mut kept = |name: &str, dtype, count| Ok(ctx.keep_lazily(name, dtype, [count])?.tensor);
    // The numbers of kept states are behind those of slots.
    let kept = model.device().is_cpu().then(|| {
        let is_used = kept("disco.models steps", disco_core::DType::I64, 1).map_err(disco_candle::to_candle)?;
        Ok::<_, ModelError>((model.kept_pool(serve.blocks, (serve.slots as u32, serve.slots), kept)?, is_used))
    });
    let (pool, is_used) = match kept {
        Some(Ok(kept)) => kept,
        other => {
            if let Some(Err(error)) = other {
                tracing::warn!(%error, "keys and values are lost with this worker");
            }
            let is_used = disco_core::Tensor::zeros(disco_core::DType::I64, [1]).map_err(disco_candle::to_candle)?;
            (model.pool(serve.blocks)?, is_used)
        }
    };
    let slots = std::iter::repeat_with(|| None).take(serve.slots).collect();
    let server = Server { model, pool, is_used, slots, reader: Reader::default() };
    let state = Opaque::new(RefCell::new(server));
    *live.0.borrow_mut() = state.downcast().as_ref().map(Rc::downgrade).unwrap_or_default();
    Ok(Object::Opaque(state))
}

/// Worker function: whether the worker has the keys and values, and the kept states, of earlier steps: its own, or those of the worker whose
/// place it has taken. After a step has failed, those of its tokens only are not whole, on hosts; devices are not asked for theirs.
fn has_memory(_: &mut WorkerContext, server: Rc<RefCell<Server>>) -> Result<bool, ModelError> {
    let server = server.borrow();
    Ok(server.model.device().is_cpu() && server.is_used.to_vec::<i64>().map_err(disco_candle::to_candle)? == [1])
}

/// Worker function: computes a step.
fn step(ctx: &mut WorkerContext, server: Rc<RefCell<Server>>, plan: Arc<[u8]>) -> Result<Option<Vec<u8>>, ModelError> {
    let plan = Plan::from_bytes(&plan).map_err(ModelError::Call)?;
    let mut server = server.borrow_mut();
    server.is_used.write(&[1_i64]).map_err(disco_candle::to_candle)?;
    let reply = server.step(ctx, plan)?;
    if server.model.comm().rank() != 0 {
        return Ok(None);
    }
    let bytes = postcard::to_allocvec(&reply).map_err(|error| ModelError::Call(format!("the reply: {error}")))?;
    Ok(Some(bytes))
}

disco_core::register_function!("disco.models.serve", serve, limit: TimeLimit::Own);
disco_core::register_function!("disco.models.has_memory", has_memory);
// The session's deadline for calls is that of a step.
disco_core::register_function!("disco.models.step", step);

/// A hidden state that is computed: the row in the plan, its slot, and what becomes of it.
#[derive(Clone, Copy)]
struct Wanted {
    row: usize,
    slot: usize,
    purpose: Purpose,
}

/// What becomes of a hidden state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// A token is chosen.
    Choice,
    /// A token is chosen. If it is this guess, another one is chosen behind it.
    Guess(u32),
    /// The logprob of this token of the prompt is told.
    Prompt(u32),
    /// A later step needs it.
    Later,
}

impl Server {
    fn step(&mut self, ctx: &mut WorkerContext, plan: Plan) -> Result<Reply, ModelError> {
        let mut reply = Reply { step: plan.step, rows: vec![Replied::default(); plan.rows.len()] };
        let (mut batch, mut wanted, mut held) = (Ragged::default(), Vec::new(), Vec::new());
        for (number, row) in plan.rows.into_iter().enumerate() {
            let slot = row.slot as usize;
            let error = |why| ModelError::Call(format!("step {}, row {number}: {why}", plan.step));
            if row.tokens == Tokens::Held {
                held.push((Wanted { row: number, slot, purpose: Purpose::Choice }, self.held(row).map_err(error)?));
                continue;
            }
            self.add(row, &mut batch, &mut |purpose| wanted.push(Wanted { row: number, slot, purpose }))
                .map_err(error)?;
        }
        let mut hidden: Vec<_> = held.iter().map(|(_, hidden)| hidden.clone()).collect();
        let wanted: Vec<_> = held.into_iter().map(|(wanted, _)| wanted).chain(wanted).collect();
        if !batch.runs.is_empty() {
            hidden.push(self.model.batch(&mut self.pool, &batch)?);
        }
        if hidden.is_empty() {
            return Ok(reply);
        }
        let hidden = Tensor::cat(&hidden, 0)?;
        for (place, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| wanted.purpose == Purpose::Later) {
            if let Some(slot) = &mut self.slots[wanted.slot] {
                slot.held = Some(hidden.narrow(0, place, 1)?);
            }
        }
        let (plain, others): (Vec<_>, Vec<_>) =
            wanted.into_iter().enumerate().filter(|(_, wanted)| wanted.purpose != Purpose::Later).partition(
                |(_, wanted)| {
                    matches!(wanted.purpose, Purpose::Choice | Purpose::Guess(_))
                        && self.slots[wanted.slot].as_ref().is_some_and(Slot::is_plain)
                },
            );
        let of = |rows: &[(usize, Wanted)]| {
            let places: Vec<u32> = rows.iter().map(|(place, _)| *place as u32).collect();
            hidden.index_select(&Tensor::new(places, hidden.device())?, 0)
        };
        if !plain.is_empty() {
            let best = self.model.most_probable(&of(&plain)?)?;
            let values = self.read::<f64>(&best.values().contiguous()?, ctx)?;
            let (numbers, sums) = values.split_at(plain.len());
            for ((_, wanted), (number, sum)) in plain.iter().zip(numbers.iter().zip(sums)) {
                let chosen = Chosen::new(*number as u32);
                let sampled = if sum.is_finite() { Sampled::Token(chosen) } else { Sampled::NotFinite };
                self.take(wanted, sampled, &mut reply);
            }
        }
        for rows in others.chunks(ROWS) {
            let logits = self.model.logits(&of(rows)?)?.contiguous()?;
            let mut logits = self.read::<f32>(&logits, ctx)?;
            let width = logits.len() / rows.len();
            for ((_, wanted), logits) in rows.iter().zip(logits.chunks_exact_mut(width.max(1))) {
                let Some(slot) = &mut self.slots[wanted.slot] else { continue };
                match wanted.purpose {
                    Purpose::Prompt(token) => {
                        let count = slot.params.prompt_logprobs.unwrap_or(0) as usize;
                        reply.rows[wanted.row].prompt.push(Logprobs::new(logits, count).of(token));
                    }
                    // Behind a guess that was wrong.
                    _ if reply.rows[wanted.row].sampled.is_some() => {}
                    _ => {
                        let sampled = slot.choose(logits);
                        self.take(wanted, sampled, &mut reply);
                    }
                }
            }
        }
        Ok(reply)
    }

    /// The hidden state that a row chooses of.
    fn held(&mut self, row: Row) -> Result<Tensor, String> {
        let slot = self.slots.get_mut(row.slot as usize).and_then(Option::as_mut);
        let slot = slot.ok_or_else(|| format!("slot {} has no sequence", row.slot))?;
        slot.mask = row.mask;
        slot.held.take().ok_or_else(|| format!("slot {} has kept no hidden state", row.slot))
    }

    /// Adds the tokens of a row to the batch, and says what becomes of which of their hidden states.
    fn add(&mut self, row: Row, batch: &mut Ragged, want: &mut dyn FnMut(Purpose)) -> Result<(), String> {
        let slots = self.slots.len();
        let place = self.slots.get_mut(row.slot as usize).ok_or_else(|| format!("slot {} of {slots}", row.slot))?;
        let first = row.first as usize;
        let numbers = row.resumes.into_iter().chain(row.keeps.map(|(_, number)| number));
        if let Some(number) = numbers.into_iter().find(|number| !(slots..2 * slots).contains(&(*number as usize))) {
            return Err(format!("the kept state {number}; they have the numbers {slots} to {}", 2 * slots - 1));
        }
        if row.starts.is_some() && first > 0 && row.resumes.is_none() && self.model.config().is_recurrent() {
            return Err(format!("slot {} begins at {first} without a state", row.slot));
        }
        if let Some(start) = row.starts {
            *place = Some(Slot::new(*start, first));
        }
        let slot = place.as_mut().ok_or_else(|| format!("slot {} has no sequence", row.slot))?;
        if slot.len != first {
            return Err(format!("slot {} has {} tokens, and goes on at {first}", row.slot, slot.len));
        }
        slot.table.extend(row.blocks);
        let last = [slot.last];
        let tokens = match &row.tokens {
            Tokens::Given(tokens) => &tokens[..],
            Tokens::Last => &last,
            Tokens::Held => &[],
        };
        if tokens.is_empty() {
            return Err("it has no tokens".into());
        }
        let drafted = row.drafted as usize;
        if drafted > 0 && (drafted >= tokens.len() || !row.samples || self.model.config().is_recurrent()) {
            return Err(format!("{drafted} of {} tokens are guesses", tokens.len()));
        }
        let (sure, guesses) = tokens.split_at(tokens.len() - drafted);
        slot.see(sure, first);
        slot.len += sure.len();
        let end = batch.push(tokens, first, slot.table.clone());
        batch.lengths.push(slot.known);
        let mut state = RunState::new(row.slot);
        (state.resumes, state.keeps) = (row.resumes, row.keeps);
        batch.states.push(state);
        if slot.params.prompt_logprobs.is_some() && first < slot.prompt_len {
            let next = tokens[1..].iter().copied().chain(row.next);
            let start = end + 1 - tokens.len() as u32;
            for (place, token) in (start..).zip(next) {
                batch.wanted.push(place);
                want(Purpose::Prompt(token));
            }
        }
        slot.mask = row.mask;
        for (place, guess) in (end - row.drafted..).zip(guesses) {
            batch.wanted.push(place);
            want(Purpose::Guess(*guess));
        }
        if row.samples || row.holds {
            batch.wanted.push(end);
            want(if row.holds { Purpose::Later } else { Purpose::Choice });
        }
        Ok(())
    }

    /// Keeps a chosen token for the next step, or goes on behind a guess that was right. Does nothing behind one that was wrong.
    fn take(&mut self, wanted: &Wanted, sampled: Sampled, reply: &mut Reply) {
        let replied = &mut reply.rows[wanted.row];
        let Some(slot) = self.slots[wanted.slot].as_mut().filter(|_| replied.sampled.is_none()) else { return };
        match sampled {
            Sampled::Token(chosen) if wanted.purpose == Purpose::Guess(chosen.id) => {
                slot.see(&[chosen.id], slot.len);
                slot.len += 1;
                replied.accepted.push(chosen);
            }
            sampled => {
                if let Sampled::Token(chosen) = &sampled {
                    slot.last = chosen.id;
                }
                replied.sampled = Some(sampled);
            }
        }
    }

    /// The elements of a tensor on the host.
    fn read<T: disco_core::Element>(
        &mut self,
        tensor: &Tensor,
        ctx: &mut WorkerContext,
    ) -> candle_core::Result<Vec<T>> {
        let reading = self.reader.begin::<T>(tensor, self.model.comm(), ctx.queue())?;
        self.reader.finish(reading, self.model.comm(), ctx.queue())
    }
}
