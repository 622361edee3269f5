//! Each rule by itself.

use super::super::reply::{Ended, Outcome, Sampled, UnexpectedReply};
use super::super::scheduler::{Limits, Scheduler, Unfit};
use super::super::sequence::{SequenceId, Work};
use super::super::step::{Row, Step, Tokens};
use super::super::void::{Abandoned, Cause, Voided};
use super::{limits, scheduler, work};
use crate::engine::request::{End, Request, Sampling};

/// Replies to a step with the token 7 for each row.
fn reply(scheduler: &mut Scheduler, step: &Step) -> Vec<Outcome> {
    let rows = step.rows.iter().filter(|row| row.samples);
    let sampled: Vec<Sampled> = rows.map(|row| Sampled { slot: row.slot, token: Some(7) }).collect();
    scheduler.reply(step.number, &sampled).unwrap()
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
fn without_max_tokens_the_prompt_is_evaluated_and_nothing_sampled() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(work(0, 20, 0)).unwrap();
    let (first, second) = (scheduler.plan().unwrap(), scheduler.plan().unwrap());
    assert_eq!(scheduler.plan(), None);
    assert!(!only(&first).samples && !only(&second).samples);
    let outcomes = reply(&mut scheduler, &first);
    assert_eq!((outcomes[0].token, outcomes[0].end), (None, None));
    let outcomes = reply(&mut scheduler, &second);
    assert_eq!((outcomes[0].token, outcomes[0].end), (None, Some(Ended::Complete(End::Length))));
}

#[test]
fn an_end_before_min_tokens_does_not_end_the_text() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(Work { ends: vec![7], min_tokens: 2, ..work(0, 4, 10) }).unwrap();
    let ends: Vec<Option<Ended>> = (0..3).map(|_| run(&mut scheduler)[0].end).collect();
    assert_eq!(ends, [None, None, Some(Ended::Complete(End::Token))]);
}

#[test]
fn the_rows_of_a_cancelled_sequence_are_ignored_when_its_slot_has_another() {
    let mut scheduler = Scheduler::new(Limits { max_sequences: 1, ..limits() });
    let cancelled = scheduler.submit(work(0, 4, 10)).unwrap();
    let first = scheduler.plan().unwrap();
    assert!(scheduler.cancel(cancelled));
    assert!(!scheduler.cancel(cancelled));
    let next = scheduler.submit(work(1, 4, 10)).unwrap();
    let second = scheduler.plan().unwrap();
    assert_eq!((only(&second).slot, only(&second).is_first), (only(&first).slot, true));
    assert_eq!(reply(&mut scheduler, &first), []);
    assert_eq!(reply(&mut scheduler, &second)[0].id, next);
}

#[test]
fn a_row_that_follows_the_end_of_its_sequence_is_ignored() {
    let mut scheduler = scheduler(64, 16);
    scheduler.submit(Work { ends: vec![7], ..work(0, 4, 10) }).unwrap();
    let (first, second) = (scheduler.plan().unwrap(), scheduler.plan().unwrap());
    assert_eq!(reply(&mut scheduler, &first)[0].end, Some(Ended::Complete(End::Token)));
    assert_eq!(scheduler.load().blocks_used, 0);
    assert_eq!(scheduler.reply(second.number, &[]), Ok(vec![]));
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
fn a_prefix_is_not_shared_with_another_salt_or_class_or_for_prompt_logprobs() {
    let mut scheduler = scheduler(64, 64);
    scheduler.submit(work(0, 40, 1)).unwrap();
    run(&mut scheduler);
    scheduler.submit(Work { salt: 1, ..work(0, 40, 1) }).unwrap();
    scheduler.submit(Work { class: 1, ..work(0, 40, 1) }).unwrap();
    let sampling = Sampling { prompt_logprobs: Some(0), ..Sampling::default() };
    let prompt = work(0, 40, 1).prompt;
    let request = Request { id: "a".into(), prompt, sampling, max_tokens: 1, salt: 0 };
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
fn after_a_failure_all_sequences_start_again_with_their_texts_in_the_order_of_age() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 10)).unwrap());
    run(&mut scheduler);
    let lost = scheduler.plan().unwrap();
    let voided = scheduler.void();
    assert_eq!(voided, Voided { resumed: vec![a, b], abandoned: vec![] });
    assert_eq!(scheduler.load().blocks_used, 0);
    let step = scheduler.plan().unwrap();
    assert_eq!(shape(&step), [(0, 0, 21), (1, 0, 21)]);
    assert!(step.rows.iter().all(|row| row.is_first && row.samples));
    let expected = UnexpectedReply::Step { number: lost.number, expected: Some(step.number) };
    assert_eq!(scheduler.reply(lost.number, &[]), Err(expected));
}

#[test]
fn suspects_run_alone_until_they_pass_the_position_at_which_they_failed() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 10)).unwrap());
    for _ in 0..2 {
        scheduler.plan().unwrap();
        assert_eq!(scheduler.void().resumed, [a, b]);
    }
    scheduler.submit(work(2, 20, 10)).unwrap();
    let first = scheduler.plan().unwrap();
    let second = scheduler.plan().unwrap();
    assert_eq!((shape(&first), shape(&second)), (vec![(0, 0, 20)], vec![(0, 20, 1)]));
    reply(&mut scheduler, &first);
    assert_eq!(scheduler.plan(), None, "the next suspect waits until the rows of the first have succeeded");
    reply(&mut scheduler, &second);
    let alone = scheduler.plan().unwrap();
    assert_eq!(shape(&alone), [(1, 0, 20)]);
    let abandoned = Abandoned { id: b, cause: Cause::Alone { position: 20 } };
    assert_eq!(scheduler.void(), Voided { resumed: vec![], abandoned: vec![abandoned] });
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 0, 22), (2, 0, 20)]);
}

#[test]
fn a_sequence_that_passes_its_position_between_failures_is_no_suspect_but_has_few_resumes() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 20)).unwrap());
    for failures in 1..5 {
        run(&mut scheduler);
        assert_eq!(scheduler.plan().unwrap().rows.len(), 2);
        let voided = scheduler.void();
        if failures <= 3 {
            assert_eq!(voided.resumed, [a, b]);
            run(&mut scheduler);
        } else {
            let cause = Cause::TooManyResumes { failures: 4 };
            assert_eq!(voided.abandoned, [a, b].map(|id| Abandoned { id, cause }));
        }
    }
}

#[test]
fn a_reply_without_a_token_changes_nothing() {
    let mut scheduler = scheduler(64, 64);
    let id = scheduler.submit(work(0, 4, 10)).unwrap();
    let step = scheduler.plan().unwrap();
    let missing = UnexpectedReply::NoToken { number: 0, slot: 0, id };
    assert_eq!(scheduler.reply(step.number, &[]), Err(missing));
    assert_eq!(scheduler.load().flights, 1);
    assert_eq!(reply(&mut scheduler, &step)[0].token, Some(7));
}

#[test]
fn a_row_whose_output_is_not_finite_ends_its_sequence_only() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 4, 10)).unwrap());
    let step = scheduler.plan().unwrap();
    let sampled = [Sampled { slot: 0, token: None }, Sampled { slot: 1, token: Some(7) }];
    let ends: Vec<_> = scheduler.reply(step.number, &sampled).unwrap().iter().map(|o| (o.id, o.end)).collect();
    assert_eq!(ends, [(a, Some(Ended::NotFinite)), (b, None)]);
}

#[test]
fn a_restarted_sequence_is_computed_again_in_its_new_class() {
    let mut scheduler = scheduler(64, 64);
    let id = scheduler.submit(work(0, 20, 10)).unwrap();
    run(&mut scheduler);
    let void = scheduler.plan().unwrap();
    scheduler.restart(id, 1);
    let step = scheduler.plan().unwrap();
    assert_eq!(reply(&mut scheduler, &void), []);
    assert_eq!((shape(&step), only(&step).is_first, only(&step).class), (vec![(0, 0, 21)], true, 1));
}
