mod planning;
mod random;
mod replies;
mod workers;

use std::sync::Arc;

use super::reply::{Outcome, Sampled};
use super::scheduler::{Limits, Scheduler};
use super::sequence::Work;
use super::step::{Row, Step};
use super::void::{Source, Voided};

fn limits() -> Limits {
    Limits {
        blocks: 64,
        max_sequences: 8,
        max_batched_tokens: 64,
        context: 1024,
        kept_states: None,
        first_context: None,
        drafts: 0,
    }
}

fn scheduler(blocks: u32, max_batched_tokens: usize) -> Scheduler {
    Scheduler::new(Limits { blocks, max_batched_tokens, ..limits() })
}

/// A prompt of `count` tokens that no prompt with another `first` token shares.
fn work(first: u32, count: u32, max_tokens: usize) -> Work {
    Work {
        prompt: (0..count).map(|index| first * 1000 + index).collect::<Arc<[u32]>>(),
        max_tokens,
        ends: Vec::new(),
        min_tokens: 0,
        salt: 0,
        is_masked: false,
        reads_cache: true,
    }
}

/// Replies to a step with the token 7 for each row.
fn reply(scheduler: &mut Scheduler, step: &Step) -> Vec<Outcome> {
    let rows = step.rows.iter().filter(|row| row.samples);
    let sampled: Vec<Sampled> = rows.map(|row| Sampled { slot: row.slot, token: Some(7) }).collect();
    scheduler.reply(step.number, &sampled).unwrap()
}

/// The workers have failed and lost everything.
fn fail(scheduler: &mut Scheduler, source: Source) -> Voided {
    let voided = scheduler.fail(source);
    scheduler.forget();
    voided
}

/// Plans a step and replies to it.
fn run(scheduler: &mut Scheduler) -> Vec<Outcome> {
    let step = scheduler.plan().expect("there is something to do");
    reply(scheduler, &step)
}

/// Sequence, start and number of tokens of each row.
fn shape(step: &Step) -> Vec<(u64, usize, usize)> {
    step.rows.iter().map(|row| (row.id.0, row.start, row.count())).collect()
}

fn only(step: &Step) -> &Row {
    assert_eq!(step.rows.len(), 1);
    &step.rows[0]
}
