//! Which rows a step has.

use super::super::reply::{Ended, Outcome, Sampled};
use super::super::scheduler::{Limits, Scheduler, Unfit};
use super::super::sequence::Work;
use super::super::step::SequenceId;
use super::super::step::{Row, Tokens};
use super::{limits, only, reply, run, scheduler, shape, work};
use crate::engine::request::{End, Request};
use disco_models::Sampler;
use disco_models::serving::Params;

#[test]
fn a_step_has_decodes_then_chunks_of_running_sequences_then_new_ones_within_the_budget() {
    let mut scheduler = scheduler(64, 20);
    scheduler.submit(work(0, 5, 10)).unwrap();
    run(&mut scheduler);
    scheduler.submit(work(1, 30, 10)).unwrap();
    scheduler.submit(work(2, 30, 10)).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(shape(&step), [(0, 5, 1), (1, 0, 19)]);
    reply(&mut scheduler, &step);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 6, 1), (1, 19, 11), (2, 0, 8)]);
}

#[test]
fn only_the_last_chunk_of_a_prompt_samples() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(work(0, 40, 3)).unwrap();
    let rows: Vec<Row> = (0..3)
        .map(|_| {
            let step = scheduler.plan().unwrap();
            reply(&mut scheduler, &step);
            only(&step).clone()
        })
        .collect();
    assert_eq!(rows.iter().map(|row| row.samples).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(rows.iter().map(|row| row.is_first).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(rows.iter().map(|row| row.blocks.len()).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(rows[2].tokens, Tokens::Given((32..40).collect()));
}

#[test]
fn a_step_planned_before_the_reply_continues_and_a_third_is_not_planned() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(work(0, 4, 10)).unwrap();
    let first = scheduler.plan().unwrap();
    let second = scheduler.plan().unwrap();
    assert_eq!((only(&second).start, &only(&second).tokens), (4, &Tokens::Continue));
    assert_eq!(scheduler.plan(), None);
    reply(&mut scheduler, &first);
    assert_eq!(only(&scheduler.plan().unwrap()).tokens, Tokens::Continue);
}

#[test]
fn nothing_is_planned_beyond_max_tokens() {
    let mut scheduler = scheduler(64, 16);
    let id = scheduler.submit(work(0, 4, 1)).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!(scheduler.plan(), None);
    let end = Some(Ended::Complete(End::Length));
    assert_eq!(reply(&mut scheduler, &step), [Outcome { id, slot: 0, positions: 0..4, token: Some(7), end }]);
    assert_eq!(scheduler.load().blocks_used, 0);
}

#[test]
fn a_prefix_is_shared_once_its_step_has_succeeded_but_never_the_last_token() {
    let mut scheduler = scheduler(64, 64);
    scheduler.submit(work(0, 32, 10)).unwrap();
    let first = scheduler.plan().unwrap();
    scheduler.submit(work(0, 32, 10)).unwrap();
    let second = scheduler.plan().unwrap();
    assert_eq!(shape(&second), [(0, 32, 1), (1, 0, 32)]);
    reply(&mut scheduler, &first);
    reply(&mut scheduler, &second);
    scheduler.submit(work(0, 32, 10)).unwrap();
    let third = scheduler.plan().unwrap();
    assert_eq!(shape(&third)[2], (2, 16, 16));
    assert_eq!(third.rows[2].blocks[0], first.rows[0].blocks[0]);
    assert_eq!(third.rows[2].blocks.len(), 2);
    assert_eq!(scheduler.counters().prefix_hits, 16);
}

#[test]
fn a_block_whose_step_is_in_flight_is_not_shared() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(work(0, 40, 10)).unwrap();
    let first = scheduler.plan().unwrap();
    let second = scheduler.plan().unwrap();
    reply(&mut scheduler, &first);
    scheduler.cancel(only(&second).id);
    scheduler.submit(work(0, 40, 10)).unwrap();
    assert_eq!(shape(&scheduler.plan().unwrap()), [(1, 16, 16)]);
}

#[test]
fn a_prefix_is_not_shared_with_another_salt_or_for_prompt_logprobs() {
    let mut scheduler = scheduler(64, 64);
    scheduler.submit(work(0, 40, 1)).unwrap();
    run(&mut scheduler);
    scheduler.submit(Work { salt: 1, ..work(0, 40, 1) }).unwrap();
    let mut params = Params::new(Sampler::GREEDY);
    params.prompt_logprobs = Some(0);
    let prompt = work(0, 40, 1).prompt;
    let request = Request { id: "a".into(), prompt, params, max_tokens: 1, grammar: None, salt: 0 };
    scheduler.submit(Work::from(&request)).unwrap();
    for _ in 0..2 {
        let step = scheduler.plan().unwrap();
        assert!(step.rows.iter().all(|row| !row.is_first || row.start == 0), "{step:?}");
        reply(&mut scheduler, &step);
    }
}

#[test]
fn the_newest_sequence_is_preempted_and_admitted_again_before_those_that_wait() {
    let mut scheduler = scheduler(4, 64);
    scheduler.submit(work(0, 15, 40)).unwrap();
    scheduler.submit(work(1, 15, 30)).unwrap();
    run(&mut scheduler);
    scheduler.submit(work(2, 40, 5)).unwrap();
    // Each of the two has one block and begins a second; then the older one begins a third.
    for _ in 0..17 {
        run(&mut scheduler);
    }
    assert_eq!(scheduler.counters().preemptions, 0);
    let step = scheduler.plan().unwrap();
    assert_eq!((shape(&step), scheduler.counters().preemptions), (vec![(0, 32, 1)], 1));
    scheduler.cancel(SequenceId(0));
    let step = scheduler.plan().unwrap();
    // Prompt and text so far; the first block is still in the cache.
    assert_eq!(shape(&step)[0], (1, 16, 17));
    assert!(step.rows[0].is_first);
    assert_eq!(step.rows[0].incarnation, 1);
}

#[test]
fn a_sequence_preempted_in_a_step_has_no_row_in_it_and_its_tokens_go_to_others() {
    let mut scheduler = scheduler(3, 16);
    let old = scheduler.submit(work(0, 40, 2)).unwrap();
    run(&mut scheduler);
    scheduler.pause(old);
    scheduler.submit(work(1, 15, 20)).unwrap();
    for _ in 0..3 {
        run(&mut scheduler);
    }
    scheduler.resume(old);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 16, 16)]);
    assert_eq!(scheduler.counters().preemptions, 1);
}

#[test]
fn a_sequence_is_not_admitted_again_in_the_step_that_preempts_it() {
    let mut scheduler = scheduler(4, 16);
    scheduler.submit(work(0, 13, 40)).unwrap();
    scheduler.submit(Work { reads_cache: false, ..work(1, 50, 5) }).unwrap();
    for _ in 0..4 {
        run(&mut scheduler);
    }
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 16, 1)]);
    assert_eq!(scheduler.counters().preemptions, 1);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 17, 1), (1, 0, 15)]);
}

#[test]
fn a_sequence_that_can_never_fit_is_refused() {
    let mut scheduler = scheduler(4, 64);
    assert_eq!(scheduler.submit(work(0, 0, 1)), Err(Unfit::EmptyPrompt));
    let unfit = Unfit::Cache { prompt: 40, max_tokens: 25, needed: 5, total: 4 };
    assert_eq!(scheduler.submit(work(0, 40, 25)), Err(unfit));
    assert!(scheduler.submit(work(0, 40, 24)).is_ok());
    let unfit = Unfit::Context { prompt: 5, max_tokens: usize::MAX, context: 1024 };
    assert_eq!(scheduler.submit(work(0, 5, usize::MAX)), Err(unfit));
}

#[test]
fn a_paused_sequence_takes_no_part_and_loses_its_blocks_to_one_that_waits() {
    let mut scheduler = scheduler(4, 64);
    let paused = scheduler.submit(work(0, 40, 10)).unwrap();
    run(&mut scheduler);
    scheduler.pause(paused);
    assert_eq!(scheduler.plan(), None);
    assert_eq!(scheduler.load().running, 1);
    let other = scheduler.submit(work(1, 40, 10)).unwrap();
    assert_eq!(only(&scheduler.plan().unwrap()).id, other);
    scheduler.resume(paused);
    scheduler.cancel(other);
    let step = scheduler.plan().unwrap();
    assert_eq!((only(&step).id, only(&step).is_first), (paused, true));
}

#[test]
fn a_sequence_is_admitted_only_if_those_that_run_can_begin_a_block_each() {
    let mut scheduler = scheduler(4, 64);
    scheduler.submit(work(0, 16, 30)).unwrap();
    scheduler.submit(work(1, 16, 30)).unwrap();
    scheduler.submit(work(2, 5, 10)).unwrap();
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 0, 16), (1, 0, 16)]);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 16, 1), (1, 16, 1)]);
    assert_eq!(scheduler.counters().preemptions, 0);
}

#[test]
fn a_text_that_repeats_its_prompt_has_guesses_behind_its_last_token_in_steps_that_wait_for_each_other() {
    let mut scheduler = Scheduler::new(Limits { drafts: 6, ..limits() });
    let id = scheduler.submit(work(0, 20, 30)).unwrap();
    let mut step = scheduler.plan().unwrap();
    // Four tokens of the prompt again.
    for token in 3..7 {
        let next = scheduler.plan().expect("the step after it is planned ahead");
        scheduler.reply(step.number, &[Sampled { slot: 0, token: Some(token) }]).unwrap();
        step = next;
    }
    assert_eq!(scheduler.plan(), None, "the text is not known");
    scheduler.reply(step.number, &[Sampled { slot: 0, token: Some(7) }]).unwrap();
    let step = scheduler.plan().unwrap();
    assert_eq!((only(&step).start, only(&step).drafted, only(&step).blocks.len()), (24, 5, 0));
    assert_eq!(only(&step).tokens, Tokens::Given((7..13).collect()));
    assert_eq!(scheduler.plan(), None);
    // Two guesses are right.
    let sampled = [8, 9, 99].map(|token| Sampled { slot: 0, token: Some(token) });
    let outcomes = scheduler.reply(step.number, &sampled).unwrap();
    let outcome = |at: usize, token| Outcome { id, slot: 0, positions: at..at + 1, token: Some(token), end: None };
    assert_eq!(outcomes, [outcome(24, 8), outcome(25, 9), outcome(26, 99)]);
    let step = scheduler.plan().unwrap();
    assert_eq!((only(&step).start, &only(&step).tokens), (27, &Tokens::Given(vec![99])));
    assert_eq!(only(&scheduler.plan().unwrap()).tokens, Tokens::Continue);
    let counters = scheduler.counters();
    assert_eq!((counters.drafted, counters.accepted), (5, 2));
}
