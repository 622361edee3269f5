//! Random operations on a scheduler and simulated workers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use disco_testing::random::Random;
use proptest::prelude::*;

use super::super::reply::{Ended, Sampled};
use super::super::scheduler::{Limits, Scheduler};
use super::super::sequence::{FirstContext, Work};
use super::super::step::SequenceId;
use super::super::step::Step;
use super::super::void::{Abandoned, Source};
use super::workers::{Workers, undisturbed};
use crate::engine::blocks::BLOCK_TOKENS;
use crate::engine::request::End;

/// A step in flight, its reply (`None`: the step has failed), and the cells that it has written.
type Flight = (Step, Option<Vec<Sampled>>, Vec<(u32, usize)>);

struct World {
    scheduler: Scheduler,
    workers: Workers,
    /// Oldest first.
    flights: VecDeque<Flight>,
    /// Texts of the sequences that have not ended.
    texts: BTreeMap<SequenceId, Vec<u32>>,
    paused: BTreeSet<SequenceId>,
    completed: usize,
    abandoned: Vec<SequenceId>,
    /// Failures after which the workers had the keys and values of all replied steps.
    kept: u64,
}

impl World {
    fn new(limits: Limits) -> Self {
        Self {
            workers: Workers::new(&limits),
            scheduler: Scheduler::new(limits),
            flights: VecDeque::new(),
            texts: BTreeMap::new(),
            paused: BTreeSet::new(),
            completed: 0,
            abandoned: Vec::new(),
            kept: 0,
        }
    }

    fn operate(&mut self, kind: u8, number: u32) {
        match kind % 100 {
            0..18 => self.submit(random_work(number), number.is_multiple_of(37).then_some(number as usize / 37 % 70)),
            18..22 => self.with_some(number, |world, id| {
                world.scheduler.cancel(id);
                world.texts.remove(&id);
            }),
            22..27 => self.with_some(number, |world, id| {
                world.scheduler.pause(id);
                world.paused.insert(id);
            }),
            27..34 => self.with_some(number, |world, id| {
                world.scheduler.resume(id);
                world.paused.remove(&id);
            }),
            34..36 => self.fail(if number.is_multiple_of(2) { Source::Outside } else { Source::Steps }, number / 2),
            36 => self.fail_a_row(number),
            37..60 => self.plan(),
            60..70 => self.choose(number),
            _ => self.reply(),
        }
        self.check();
    }

    fn submit(&mut self, work: Work, killer_at: Option<usize>) {
        if let Ok(id) = self.scheduler.submit(work.clone()) {
            self.workers.works.insert(id, work);
            self.texts.insert(id, Vec::new());
            self.workers.killers.extend(killer_at.map(|position| (id, position)));
        }
    }

    fn with_some(&mut self, number: u32, operation: impl FnOnce(&mut Self, SequenceId)) {
        let ids: Vec<SequenceId> = self.texts.keys().copied().collect();
        if !ids.is_empty() {
            operation(self, ids[number as usize % ids.len()]);
        }
    }

    /// Chooses tokens of some sequences that hold their hidden states.
    fn choose(&mut self, number: u32) {
        let mut holding = self.scheduler.holding();
        for id in &holding {
            let sequence = &self.scheduler.sequences[id];
            assert!(sequence.work.is_masked && !self.paused.contains(id));
            assert_eq!(sequence.generated(), self.texts[id].len(), "the text before a choice is not known");
        }
        holding.retain(|id| !(id.0 as u32 ^ number).is_multiple_of(5));
        if let Some(step) = self.scheduler.plan_choice(&holding) {
            assert!(step.is_choice() && step.rows.iter().map(|row| row.id).eq(holding));
            self.launch(step);
        }
    }

    fn plan(&mut self) {
        let Some(step) = self.scheduler.plan() else {
            let all_paused = self.texts.keys().all(|id| self.paused.contains(id));
            let has_choices = !self.scheduler.holding().is_empty();
            assert!(all_paused || has_choices || !self.flights.is_empty(), "sequences wait, and nothing runs");
            return;
        };
        assert!(step.tokens() <= self.scheduler.limits.max_batched_tokens);
        let slots: BTreeSet<u32> = step.rows.iter().map(|row| row.slot).collect();
        assert_eq!(slots.len(), step.rows.len());
        for row in &step.rows {
            assert!(row.count() > 0);
            assert!(!self.paused.contains(&row.id) && self.texts.contains_key(&row.id));
            assert!(
                row.end() < self.workers.works[&row.id].prompt.len() + self.workers.works[&row.id].max_tokens.max(1)
            );
            let resident = self.scheduler.sequences[&row.id].resident.as_ref().unwrap();
            for position in row.start..row.end() {
                let block = resident.table[position / BLOCK_TOKENS];
                assert_eq!(self.scheduler.blocks.users(block), 1, "a row writes a shared block");
            }
        }
        self.launch(step);
    }

    fn launch(&mut self, step: Step) {
        // After a failed step, the workers execute nothing.
        let has_failed = self.flights.iter().any(|(_, reply, _)| reply.is_none());
        let reply = if has_failed { None } else { self.workers.execute(&step) };
        self.flights.push_back((step, reply, std::mem::take(&mut self.workers.written)));
    }

    fn reply(&mut self) {
        if let Some((step, None, _)) = self.flights.front() {
            let number = step.number as u32;
            return self.fail(Source::Steps, number);
        }
        let Some((step, Some(sampled), _)) = self.flights.pop_front() else { return };
        for outcome in self.scheduler.reply(step.number, &sampled).unwrap() {
            let text = self.texts.get_mut(&outcome.id).expect("only sequences that have not ended have outcomes");
            text.extend(outcome.token);
            let Some(end) = outcome.end else { continue };
            let text = self.texts.remove(&outcome.id).unwrap();
            let work = &self.workers.works[&outcome.id];
            match end {
                Ended::NotFinite => assert_eq!(outcome.token, None),
                Ended::Complete(end) => {
                    let expected = undisturbed(work);
                    assert_eq!(text, expected);
                    let may_end = text.len() > work.min_tokens;
                    let has_end = text.last().is_some_and(|token| may_end && work.ends.contains(token));
                    assert_eq!(end, if has_end { End::Token } else { End::Length });
                    self.completed += 1;
                }
            }
        }
    }

    /// The workers could choose no token for a row in flight.
    fn fail_a_row(&mut self, number: u32) {
        let Some((_, Some(sampled), _)) = self.flights.front_mut() else { return };
        let count = sampled.len();
        if count > 0 {
            sampled[number as usize % count].token = None;
        }
    }

    /// The workers fail. Two times of three, they have the keys and values of all replied steps.
    fn fail(&mut self, source: Source, number: u32) {
        let voided = self.scheduler.fail(source);
        let rows: BTreeSet<SequenceId> =
            self.flights.iter().flat_map(|(step, ..)| &step.rows).map(|row| row.id).collect();
        let alive: BTreeSet<SequenceId> = rows.iter().copied().filter(|id| self.texts.contains_key(id)).collect();
        let abandoned = voided.abandoned.map(|abandoned| abandoned.id);
        assert_eq!(voided.resumed.iter().copied().chain(abandoned).collect::<BTreeSet<_>>(), alive);
        if let Some(Abandoned { id, .. }) = voided.abandoned {
            assert_eq!(rows, BTreeSet::from([id]));
            self.texts.remove(&id);
            self.abandoned.push(id);
        }
        if number.is_multiple_of(3) {
            self.flights.clear();
            self.workers.forget();
            self.scheduler.forget();
            assert_eq!(self.scheduler.blocks.available(), self.scheduler.blocks.count());
        } else {
            // Steps are half executed.
            let mut cells = Vec::new();
            let mut states = Vec::new();
            for (step, _, written) in self.flights.drain(..) {
                cells.extend(written);
                states.extend(step.rows.iter().filter_map(|row| row.keeps.map(|(_, state)| state)));
            }
            let is_whole = |(block, slot): &(u32, usize)| (block + *slot as u32 + number).is_multiple_of(4);
            self.workers.damage(cells.into_iter().filter(|cell| !is_whole(cell)), states.into_iter());
            self.scheduler.go_back();
            self.kept += 1;
        }
    }

    /// The scheduler's own account of blocks, slots and tokens in flight.
    fn check(&self) {
        let scheduler = &self.scheduler;
        let mut users = vec![0; scheduler.blocks.count()];
        let mut places = BTreeMap::new();
        let mut slots: BTreeSet<u32> = scheduler.free_slots.iter().copied().collect();
        let mut running = 0;
        for (id, sequence) in scheduler.residents() {
            let resident = sequence.resident.as_ref().unwrap();
            running += 1;
            slots.insert(resident.slot);
            // Guesses that were wrong leave blocks, which the next tokens get.
            let room = resident.planned + scheduler.limits.drafts;
            let blocks = resident.planned.div_ceil(BLOCK_TOKENS)..=room.div_ceil(BLOCK_TOKENS);
            assert!(blocks.contains(&resident.table.len()), "{} blocks, not {blocks:?}", resident.table.len());
            for (index, &block) in resident.table.iter().enumerate() {
                users[block as usize] += 1;
                let is_full = index < resident.registered;
                let first = *places.entry(block).or_insert((index, is_full, id));
                let is_shared = first.0 == index && first.1 && is_full && first.2 != id;
                assert!(is_shared || first.2 == id && first.0 == index, "block {block} is in two tables");
            }
            let live = |row: &&super::super::step::FlightRow| {
                row.id == id && row.incarnation == sequence.incarnation && row.samples
            };
            let pending = scheduler.flights.iter().flat_map(|flight| &flight.rows).filter(live).count();
            assert_eq!(resident.pending, pending);
        }
        let max_sequences = scheduler.limits.max_sequences as usize;
        assert_eq!((slots.len(), scheduler.free_slots.len() + running), (max_sequences, max_sequences));
        for (block, &users) in (0..).zip(&users) {
            assert_eq!(scheduler.blocks.users(block), users);
        }
        if let Some(states) = &scheduler.states {
            let keeping = scheduler.residents().map(|(_, sequence)| sequence.resident.as_ref().unwrap().keeping.len());
            assert_eq!(states.available(), states.count() - keeping.sum::<usize>());
        }
        let unused = users.iter().filter(|&&users| users == 0).count();
        assert_eq!(scheduler.blocks.available(), unused);
        assert!(scheduler.sequences.keys().eq(self.texts.keys()));
        assert_eq!(scheduler.flights.len(), self.flights.len());
    }

    /// Resumes all sequences and lets them end.
    fn finish(&mut self) {
        for id in std::mem::take(&mut self.paused) {
            self.scheduler.resume(id);
        }
        let mut rounds = 0;
        while !self.texts.is_empty() || !self.flights.is_empty() {
            self.choose(rounds);
            self.check();
            self.plan();
            self.check();
            self.plan();
            self.check();
            self.reply();
            self.check();
            rounds += 1;
            assert!(rounds < 100_000, "{} sequences do not end", self.texts.len());
        }
        assert_eq!(self.scheduler.plan(), None);
        let load = self.scheduler.load();
        assert_eq!((load.running, load.waiting, load.blocks_used, load.flights), (0, 0, 0, 0));
    }
}

/// Work whose prompt shares a prefix with others'.
fn random_work(number: u32) -> Work {
    let mut bits = Random::new(u64::from(number));
    let family = bits.below(3) as u32;
    // Some prompts are full blocks that others have, too.
    let shared = if bits.below(4) == 0 { 32 } else { bits.below(50) };
    let own = if bits.below(2) == 0 && shared > 0 { 0 } else { 1 + bits.below(20) };
    let prompt = (0..shared as u32).map(|index| family * 7 + index % 11).chain((0..own).map(|_| bits.below(23) as u32));
    let prompt: Vec<u32> = prompt.collect();
    let is_masked = bits.below(3) == 0;
    Work {
        prompt: prompt.into(),
        max_tokens: bits.below(40),
        ends: (0..bits.below(3)).map(|_| bits.below(23) as u32).collect(),
        // Masks have no end that comes too early.
        min_tokens: if is_masked { 0 } else { bits.below(12) },
        salt: bits.below(8) as u64 / 7,
        is_masked,
        reads_cache: bits.below(6) > 0,
    }
}

fn limits(blocks: u32, max_sequences: u32, max_batched_tokens: usize) -> Limits {
    Limits {
        blocks,
        max_sequences,
        max_batched_tokens,
        context: 100,
        kept_states: None,
        first_context: None,
        drafts: 5,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_operations_leave_texts_and_blocks_intact(
        blocks in 1u32..14,
        max_sequences in 1u32..6,
        max_batched_tokens in 1usize..50,
        kept_states in prop::option::of(0u32..9),
        first_context in prop::option::of((0usize..90, any::<bool>())),
        drafts in 0usize..9,
        operations in prop::collection::vec((any::<u8>(), any::<u32>()), 0..300),
    ) {
        let first_context = first_context.map(|(tokens, restarts)| FirstContext { tokens, restarts });
        let limits = limits(blocks, max_sequences, max_batched_tokens);
        let mut world = World::new(Limits { kept_states, first_context, drafts, ..limits });
        for (kind, number) in operations {
            world.operate(kind, number);
        }
        world.finish();
    }
}

#[test]
fn ten_thousand_operations_leave_texts_and_blocks_intact() {
    let long = |restarts| Some(FirstContext { tokens: 45, restarts });
    for (seed, blocks, kept_states, first_context) in
        [(1, 7, None, None), (2, 12, None, long(true)), (3, 40, None, long(false)), (4, 20, Some(8), None)]
    {
        let mut world = World::new(Limits { kept_states, first_context, ..limits(blocks, 5, 24) });
        let mut bits = Random::new(seed);
        for _ in 0..10_000 {
            let waiting = world.texts.len() > 40;
            let kind = bits.below(100) as u8;
            // A queue that grows for ever would only be longer, not different.
            let kind = if waiting && kind < 18 { kind + 50 } else { kind };
            world.operate(kind, bits.next() as u32);
        }
        world.finish();
        let counters = world.scheduler.counters();
        assert!(world.completed > 100, "{} texts", world.completed);
        if kept_states.is_none() {
            let wrong = counters.drafted - counters.accepted;
            assert!(counters.accepted > 100 && wrong > 10, "{counters:?}");
        }
        assert!(counters.preemptions > 20 && counters.prefix_hits > 500, "{counters:?}");
        assert!(!world.abandoned.is_empty() && world.kept > 50, "{:?}, {}", world.abandoned, world.kept);
    }
}

#[test]
fn a_killer_is_abandoned_and_the_texts_of_the_others_are_complete() {
    for position in [0, 20, 40, 60] {
        let mut world = World::new(Limits { kept_states: Some(4), ..limits(20, 8, 16) });
        for number in 0..6 {
            let work = Work { max_tokens: 30, ends: Vec::new(), ..super::work(number, 40, 30) };
            world.submit(work, (number == 3).then_some(position));
        }
        world.finish();
        assert_eq!(world.completed, 5);
        assert_eq!(world.abandoned, [SequenceId(3)]);
    }
}
