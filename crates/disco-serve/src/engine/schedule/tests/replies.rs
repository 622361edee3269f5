//! What replies and failures do.

use super::super::reply::{Ended, Sampled, UnexpectedReply};
use super::super::scheduler::{Limits, Scheduler};
use super::super::sequence::Work;
use super::super::void::{Abandoned, OUTSIDE_FAILURES, Source, Voided};
use super::{fail, limits, only, reply, run, scheduler, shape, work};
use crate::engine::request::End;

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
fn after_a_failure_all_sequences_start_again_with_their_texts_in_the_order_of_age() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 10)).unwrap());
    run(&mut scheduler);
    let lost = scheduler.plan().unwrap();
    let voided = fail(&mut scheduler, Source::Steps);
    assert_eq!(voided, Voided { resumed: vec![a, b], abandoned: None });
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
        assert_eq!(fail(&mut scheduler, Source::Steps).resumed, [a, b]);
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
    let abandoned = Some(Abandoned { id: b, position: 20 });
    assert_eq!(fail(&mut scheduler, Source::Steps), Voided { resumed: vec![], abandoned });
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 0, 22), (2, 0, 20)]);
}

#[test]
fn a_sequence_that_passes_its_position_between_failures_is_no_suspect() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 200)).unwrap());
    for _ in 0..20 {
        run(&mut scheduler);
        assert_eq!(scheduler.plan().unwrap().rows.len(), 2);
        assert_eq!(fail(&mut scheduler, Source::Steps), Voided { resumed: vec![a, b], abandoned: None });
        run(&mut scheduler);
    }
}

#[test]
fn failures_from_outside_make_no_suspects_and_end_none() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 10)).unwrap());
    for _ in 2..OUTSIDE_FAILURES {
        assert_eq!(scheduler.plan().unwrap().rows.len(), 2);
        assert_eq!(fail(&mut scheduler, Source::Outside), Voided { resumed: vec![a, b], abandoned: None });
    }
    for _ in 0..2 {
        assert_eq!(scheduler.plan().unwrap().rows.len(), 2);
        assert_eq!(fail(&mut scheduler, Source::Steps).resumed, [a, b]);
    }
    // A suspect is still one, and goes on.
    assert_eq!(only(&scheduler.plan().unwrap()).id, a);
    assert_eq!(fail(&mut scheduler, Source::Outside), Voided { resumed: vec![a], abandoned: None });
    assert_eq!(only(&scheduler.plan().unwrap()).id, a);
}

#[test]
fn a_sequence_for_which_the_system_ends_workers_again_and_again_is_abandoned() {
    let mut scheduler = scheduler(64, 64);
    let [a, b] = [0, 1].map(|first| scheduler.submit(work(first, 20, 10)).unwrap());
    for failures in 1.. {
        scheduler.plan().unwrap();
        if let Some(abandoned) = fail(&mut scheduler, Source::Outside).abandoned {
            assert_eq!((abandoned.id, failures), (a, 3 * OUTSIDE_FAILURES));
            break;
        }
    }
    assert_eq!(only(&scheduler.plan().unwrap()).id, b);
}

#[test]
fn steps_have_no_more_tokens_than_they_are_limited_to() {
    let mut scheduler = scheduler(64, 64);
    scheduler.submit(work(0, 100, 10)).unwrap();
    scheduler.limit_steps(8);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 0, 8)]);
    scheduler.limit_steps(1000);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 8, 64)]);
    fail(&mut scheduler, Source::Outside);
    scheduler.limit_steps(0);
    assert_eq!(shape(&scheduler.plan().unwrap()), [(0, 0, 1)]);
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
fn workers_that_have_what_was_replied_to_compute_only_the_failed_steps_again() {
    let mut scheduler = scheduler(64, 64);
    let masked = Work { is_masked: true, ..work(2, 20, 10) };
    let [a, b, c] = [work(0, 16, 10), work(1, 40, 10), masked].map(|work| scheduler.submit(work).unwrap().0);
    // All of a, b, and the first 8 tokens of c.
    assert_eq!(shape(&scheduler.plan().unwrap()), [(a, 0, 16), (b, 0, 40), (c, 0, 8)]);
    let first = scheduler.flights.front().unwrap().number;
    let sampled = [0, 1].map(|slot| Sampled { slot, token: Some(7) });
    scheduler.reply(first, &sampled).unwrap();
    let [second, third] = [0, 1].map(|_| scheduler.plan().unwrap());
    assert_eq!(shape(&second), [(a, 16, 1), (b, 40, 1), (c, 8, 12)]);
    assert_eq!(shape(&third), [(a, 17, 1), (b, 41, 1)]);
    reply(&mut scheduler, &second);
    assert_eq!(scheduler.holding().len(), 1);

    let resumed = scheduler.fail(Source::Outside).resumed;
    scheduler.go_back();
    assert_eq!(resumed.iter().map(|id| id.0).collect::<Vec<_>>(), [a, b]);
    assert!(scheduler.holding().is_empty());
    let again = scheduler.plan().unwrap();
    // The hidden state of the last token of c is lost with the slots.
    assert_eq!(shape(&again), [(a, 17, 1), (b, 41, 1), (c, 19, 1)]);
    assert!(again.rows.iter().all(|row| row.is_first && row.resumes.is_none()));
    let blocks: Vec<usize> = again.rows.iter().map(|row| row.blocks.len()).collect();
    assert_eq!((blocks, scheduler.counters().recomputed), (vec![2, 3, 2], 0));
}
