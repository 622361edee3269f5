mod random;
mod rules;
mod workers;

use std::sync::Arc;

use super::scheduler::{Limits, Scheduler};
use super::sequence::Work;

fn limits() -> Limits {
    Limits { blocks: 64, max_sequences: 8, max_batched_tokens: 64, context: 1024, max_resumes: 3 }
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
        class: 0,
        reads_cache: true,
    }
}
