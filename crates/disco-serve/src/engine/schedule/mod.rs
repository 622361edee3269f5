//! Decides which sequences take part in each step of the model.
//!
//! A step has at most `max_batched_tokens` tokens: first one token of each sequence that generates, then chunks of prompts,
//! oldest sequence first, then sequences that wait. If no block is free, the newest running sequence is preempted: it gives
//! all its blocks back and is computed again later, from its prompt and the text so far.
//!
//! Up to [`STEPS_AHEAD`] steps are in flight. A step is planned before the reply of the step before has arrived, as if each
//! sequence goes on: its row says [`Tokens::Continue`], because only the workers have the token yet. A sequence that has
//! ended by then wastes one row, and its reply is ignored.
//!
//! While few sequences run, a sequence that repeats an earlier place of its text gets drafts: its row has guesses behind the last token, and the
//! workers choose a token behind each. The chosen tokens are the text, up to the first one that differs from its guess. Such steps are planned one by one, when all of the
//! text is known.
//!
//! Models with linear attention have a state for each sequence beside its blocks. The workers keep copies of it where a row passes
//! the end of a full block, and a prefix is found where its last block has one. A sequence that outgrows the first context of a
//! model that restarts waits for its last token, and begins anew.
//!
//! The workers execute steps in the order of their plans. So a block or a slot that one step still uses can be given away
//! in the plan of the next one.

mod drafts;
mod plan;
mod reply;
mod scheduler;
mod sequence;
mod step;
#[cfg(test)]
mod tests;
mod void;

pub use reply::{Ended, Outcome, Sampled, UnexpectedReply};
pub use scheduler::{Counters, Limits, Load, STEPS_AHEAD, Scheduler, Unfit};
pub use sequence::{FirstContext, Work};
pub use step::{Row, SequenceId, Step, Tokens};
pub use void::{Abandoned, Source, Voided};
