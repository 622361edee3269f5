//! The engine's loop: plans steps, sends them to the workers, and tells the requests what came of them.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco::Error;
use disco_models::serving::{self, Chosen, Plan, Reply};
use tokio::time::sleep;

use super::pace::Pace;
use super::request::{Failure, Inbox, Submitted};
use super::schedule::{Abandoned, Ended, Limits, Outcome, Sampled, Scheduler, SequenceId, Step, Tokens, Work};
use super::sequence::Sequence;
use super::workers::{Computing, Placement, Workers, source};
use crate::health::{Health, Load, State};
use crate::metrics::StepMeters;

/// How often the loop looks at clients that do not read, and at workers without a step.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the loop computes masks of grammars before it sends the finished ones.
const CHOOSING: Duration = Duration::from_millis(10);
/// Why a text ends whose logits are no numbers.
const NOT_FINITE: &str = "a logit of the model is NaN or infinite: its weights are damaged, or overflow their type";

/// What an engine needs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model's name in metrics.
    pub name: String,
    /// The workers and the model.
    pub placement: Placement,
    /// The room of steps and of the cache.
    pub limits: Limits,
    /// How long a client can read nothing before its request ends.
    pub slow_reader: Duration,
}

/// Serves the requests of `inbox` until its senders are gone, or until `ended`, also while the workers are started or
/// replaced: requests that run then fail. Blocks the thread.
///
/// # Errors
/// The workers can't be started, or can't be made usable again after a failure. The requests have failed then.
pub fn run(options: Options, inbox: Inbox, health: Arc<Health>, ended: impl Future<Output = ()>) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Error::State(format!("the engine can't be started: {error}")))?;
    let served = runtime.block_on(async {
        let (mut ended, step_deadline) = (pin!(ended), options.placement.step_deadline);
        let workers = tokio::select! {
            workers = Workers::start(options.placement) => workers?,
            () = &mut ended => return Ok(()),
        };
        health.set_state(State::Ready);
        let Limits { max_sequences, max_batched_tokens, .. } = options.limits;
        let mut engine = Engine {
            workers,
            pace: Pace::new(max_sequences, max_batched_tokens, step_deadline),
            scheduler: Scheduler::new(options.limits),
            sequences: HashMap::new(),
            flights: VecDeque::new(),
            last_reply: Instant::now(),
            slow_reader: options.slow_reader,
            meters: StepMeters::new(&options.name),
            health: &health,
        };
        let served = tokio::select! {
            served = engine.serve(inbox) => served,
            () = &mut ended => Ok(()),
        };
        let why = match &served {
            Ok(()) => Failure::Shutdown,
            Err(error) => Failure::Failed(format!("the model can't be computed any more: {error}")),
        };
        engine.sequences.drain().for_each(|(_, sequence)| sequence.fail(why.clone()));
        if served.is_err() {
            health.set_state(State::Failed);
        }
        engine.workers.shutdown().await;
        served
    });
    if served.is_err() {
        health.set_state(State::Failed);
    }
    served
}

struct Engine<'a> {
    workers: Workers,
    pace: Pace,
    scheduler: Scheduler,
    sequences: HashMap<SequenceId, Sequence>,
    /// Oldest first.
    flights: VecDeque<Flight>,
    last_reply: Instant,
    slow_reader: Duration,
    meters: StepMeters,
    health: &'a Health,
}

/// A step under way.
struct Flight {
    step: Step,
    sent: Instant,
    reply: Computing<Reply>,
}

impl Engine<'_> {
    async fn serve(&mut self, mut inbox: Inbox) -> Result<(), Error> {
        let mut is_open = true;
        loop {
            while let Ok(submitted) = inbox.submitted.try_recv() {
                self.submit(submitted);
            }
            self.look_at_clients();
            if let Err(error) = self.send_steps().await {
                self.repair(error).await?;
                continue;
            }
            self.health.set_load(self.load());
            if !is_open && self.sequences.is_empty() {
                return Ok(());
            }
            let oldest = async {
                match self.flights.front_mut() {
                    Some(flight) => (&mut flight.reply).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                reply = oldest => match reply.and_then(|reply| self.apply(reply)) {
                    Ok(()) => (),
                    Err(error) => self.repair(error).await?,
                },
                submitted = inbox.submitted.recv(), if is_open => match submitted {
                    Some(submitted) => self.submit(submitted),
                    None => is_open = false,
                },
                () = inbox.wake.notified() => (),
                () = sleep(LOOK_EVERY) => if self.flights.is_empty()
                    && let Some(error) = self.workers.failure().await
                {
                    self.repair(error).await?;
                },
            }
        }
    }

    fn submit(&mut self, submitted: Submitted) {
        let work = Work::from(&submitted.request);
        let sequence = Sequence::new(submitted);
        match self.scheduler.submit(work) {
            Ok(id) => {
                tracing::debug!(request = sequence.id(), sequence = id.0, "submitted");
                self.sequences.insert(id, sequence);
            }
            Err(unfit) => sequence.fail(Failure::Invalid(unfit.to_string())),
        }
    }

    /// Cancels requests whose clients have gone, and pauses those whose clients are behind.
    fn look_at_clients(&mut self) {
        let scheduler = &mut self.scheduler;
        let gone = self.sequences.extract_if(|id, sequence| {
            if sequence.is_cancelled() {
                scheduler.cancel(*id);
                return true;
            }
            match (sequence.is_behind(), sequence.paused) {
                (true, None) => {
                    sequence.paused = Some(Instant::now());
                    scheduler.pause(*id);
                }
                (false, Some(_)) => {
                    sequence.paused = None;
                    scheduler.resume(*id);
                }
                (true, Some(_)) if sequence.has_read() => sequence.paused = Some(Instant::now()),
                (true, Some(since)) if since.elapsed() > self.slow_reader => {
                    scheduler.cancel(*id);
                    return true;
                }
                _ => (),
            }
            false
        });
        for (_, sequence) in gone {
            if !sequence.is_cancelled() {
                sequence.fail(Failure::SlowReader);
            }
        }
    }

    /// Sends as many steps as may be under way.
    async fn send_steps(&mut self) -> Result<(), Error> {
        self.scheduler.limit_steps(self.pace.tokens());
        let began = Instant::now();
        loop {
            let choice = if began.elapsed() < CHOOSING { self.choice() } else { None };
            let Some(step) = choice.or_else(|| self.scheduler.plan()) else { break };
            let plan = self.plan(&step);
            if !step.is_choice() {
                self.meters.tokens.record(step.tokens() as f64);
            }
            if self.flights.is_empty() {
                self.health.step_began();
            }
            let reply = self.workers.send(&plan).await?;
            self.flights.push_back(Flight { step, sent: Instant::now(), reply });
        }
        Ok(())
    }

    /// A step that chooses the next tokens of sequences with a grammar, whose forward passes are under way or done.
    fn choice(&mut self) -> Option<Step> {
        let (mut ready, began) = (Vec::new(), Instant::now());
        for id in self.scheduler.holding() {
            // Others wait for the next step, so that no step waits for many grammars.
            if !ready.is_empty() && began.elapsed() > CHOOSING {
                break;
            }
            match self.sequences.get_mut(&id).map(Sequence::constrain) {
                Some(Err(why)) => self.break_off(id, &why),
                _ => ready.push(id),
            }
        }
        self.scheduler.plan_choice(&ready)
    }

    /// Ends a sequence whose grammar can't be followed.
    fn break_off(&mut self, id: SequenceId, why: &str) {
        self.scheduler.cancel(id);
        if let Some(sequence) = self.sequences.remove(&id) {
            sequence.fail(Failure::Invalid(format!("the grammar of the text can't be followed: {why}")));
        }
    }

    /// A step for the workers.
    fn plan(&mut self, step: &Step) -> Plan {
        let mut plan = Plan::new(step.number);
        plan.rows.extend(step.rows.iter().map(|row| {
            let tokens = match &row.tokens {
                Tokens::Given(tokens) => serving::Tokens::Given(tokens.clone()),
                Tokens::Continue => serving::Tokens::Last,
                Tokens::Held => serving::Tokens::Held,
            };
            let mut planned = serving::Row::new(row.slot, row.start as u32, tokens);
            (planned.blocks, planned.samples) = (row.blocks.clone(), row.samples);
            planned.holds = row.holds;
            planned.drafted = row.drafted as u32;
            planned.resumes = row.resumes;
            planned.keeps = row.keeps.map(|(tokens, state)| (tokens as u32, state));
            if let Some(sequence) = self.sequences.get_mut(&row.id) {
                planned.mask = sequence.mask();
                sequence.begin(row.start);
                planned.starts = row.is_first.then(|| Box::new(sequence.start(row.known, row.start)));
                planned.next = sequence.prompt_token(row.end());
            }
            planned
        }));
        plan
    }

    /// Tells the sequences of the oldest step what came of it.
    fn apply(&mut self, reply: Reply) -> Result<(), Error> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let mut sampled = Vec::new();
        let mut of_slot: HashMap<u32, (VecDeque<Chosen>, Vec<Chosen>)> = HashMap::new();
        for (row, replied) in flight.step.rows.iter().zip(reply.rows) {
            let is_finite = replied.prompt.iter().all(|chosen| !chosen.logprob.is_nan());
            let mut chosen = VecDeque::from(replied.accepted);
            sampled.extend(chosen.iter().map(|chosen| Sampled { slot: row.slot, token: Some(chosen.id) }));
            let last = match replied.sampled {
                Some(serving::Sampled::Token(chosen)) if is_finite => Some(chosen),
                _ => None,
            };
            if row.samples || !is_finite {
                sampled.push(Sampled { slot: row.slot, token: last.as_ref().map(|chosen| chosen.id) });
            }
            chosen.extend(last);
            of_slot.insert(row.slot, (chosen, replied.prompt));
        }
        let outcomes = self.scheduler.reply(reply.step, &sampled).map_err(|error| Error::State(error.to_string()))?;
        for outcome in outcomes {
            let (chosen, prompt) = of_slot.entry(outcome.slot).or_default();
            self.tell(&outcome, chosen.pop_front(), std::mem::take(prompt));
        }
        self.meters.seconds.record(flight.sent.elapsed());
        // The workers compute one step after another.
        let began = flight.sent.max(std::mem::replace(&mut self.last_reply, Instant::now()));
        if !flight.step.is_choice() {
            self.pace.took(flight.step.tokens(), began.elapsed());
        }
        let counters = self.scheduler.counters();
        self.meters.preemptions.absolute(counters.preemptions);
        self.meters.prefix_queries.absolute(counters.prefix_queries);
        self.meters.prefix_hits.absolute(counters.prefix_hits);
        self.meters.drafted.absolute(counters.drafted);
        self.meters.accepted.absolute(counters.accepted);
        self.meters.recomputed.absolute(counters.recomputed);
        self.health.step_ended(self.load());
        if !self.flights.is_empty() {
            self.health.step_began();
        }
        Ok(())
    }

    fn tell(&mut self, outcome: &Outcome, chosen: Option<Chosen>, prompt: Vec<Chosen>) {
        let Some(sequence) = self.sequences.get_mut(&outcome.id) else { return };
        if let Some(Ended::NotFinite) = outcome.end {
            if let Some(sequence) = self.sequences.remove(&outcome.id) {
                sequence.fail(Failure::Failed(NOT_FINITE.to_owned()));
            }
            return;
        }
        sequence.prompt(outcome.positions.start + 1, prompt);
        if let (Some(chosen), Some(_)) = (chosen, outcome.token)
            && let Err(why) = sequence.token(chosen)
            && outcome.end.is_none()
        {
            return self.break_off(outcome.id, &why);
        }
        if let Some(Ended::Complete(end)) = outcome.end
            && let Some(sequence) = self.sequences.remove(&outcome.id)
        {
            sequence.end(end);
        }
    }

    fn load(&self) -> Load {
        let load = self.scheduler.load();
        Load {
            running: load.running,
            waiting: load.waiting,
            free_blocks: load.blocks - load.blocks_used,
            blocks: load.blocks,
        }
    }

    /// Makes the workers usable after a failure. The sequences go on behind the last step that was replied to, or, if keys and values are
    /// lost or may be damaged, from their prompts and texts so far; a sequence that has failed too often ends.
    async fn repair(&mut self, error: Error) -> Result<(), Error> {
        self.health.set_state(State::Repairing);
        self.flights.clear();
        self.pace.restart();
        let voided = self.scheduler.fail(source(&error));
        // No step runs until the workers are ready.
        self.health.step_ended(self.load());
        tracing::warn!(%error, resumed = voided.resumed.len(), "a step has failed");
        self.meters.resumed.increment(voided.resumed.len() as u64);
        // The lines after the first one are about the state of each worker.
        let reason: Arc<str> = error.to_string().lines().next().unwrap_or_default().into();
        self.sequences.values_mut().for_each(|sequence| sequence.lost(reason.clone()));
        if let Some(Abandoned { id, position }) = voided.abandoned
            && let Some(sequence) = self.sequences.remove(&id)
        {
            tracing::warn!(
                request = sequence.id(),
                position,
                "a request is given up: the workers fail whenever they compute it"
            );
            sequence.fail(Failure::Failed(format!(
                "the workers failed at position {position} of this request, while no other request was running: {reason}"
            )));
        }
        let began = Instant::now();
        let goes_on = self.workers.repair_until_ready(error).await?;
        if goes_on {
            self.scheduler.go_back()
        } else {
            self.scheduler.forget()
        }
        self.sequences.values_mut().for_each(Sequence::replaced);
        self.meters.repairs.increment(1);
        self.meters.last_repair.set(began.elapsed());
        tracing::info!(seconds = began.elapsed().as_secs_f64(), goes_on, "the workers are ready again");
        self.health.step_ended(self.load());
        self.health.set_state(State::Ready);
        Ok(())
    }
}
