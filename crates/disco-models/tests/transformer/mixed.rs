//! Models with random mixes of features, on any number of ranks, give the logits of plain loops.

use std::env;
use std::thread;
use std::time::Duration;

use disco_candle::Comm;
use disco_models::{ExpertSplit, Sums};

use super::draw::{change, draw};
use super::ours::{difference, logits, write};

/// A source of choices.
fn choices(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = 0xd134_2543_de82_ef95 ^ seed;
    move |choices| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % choices
    }
}

#[test]
fn logits_of_random_mixes_of_features_are_those_of_plain_loops() {
    let cases = if env::var_os("DISCO_LONG_TESTS").is_some() { 3000 } else { 60 };
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=cases {
        let mut pick = choices(seed);
        let (slow, tokens) = draw(&mut pick);
        let is_dynamic = slow.config["rope_parameters"]["rope_type"] == "dynamic";
        // Keys of dynamic rotations keep those of the steps that computed them.
        let len = if is_dynamic { tokens.len() } else { 1 + pick(tokens.len()) };
        // There may be more than heads, experts or rows.
        let ranks = 1 + pick(5);
        let split = [ExpertSplit::Within, ExpertSplit::Over][pick(2)];
        let count = |key: &str| slow.config[key].as_u64().map_or(usize::MAX, |count| count as usize);
        let fewest = count("num_attention_heads").min(count("num_local_experts"));
        let all = [Sums::Whole, Sums::Nodes, Sums::Parts];
        let sums = all[pick(if ranks <= fewest { 3 } else { 2 })];
        write(&slow, folder.path());
        let expected = slow.logits(&tokens);
        let alone = logits(folder.path(), (split, sums), &tokens, len, Comm::alone()).unwrap();
        let comms = disco_local::connect_threads(ranks, Duration::from_secs(60)).unwrap();
        let found = thread::scope(|scope| {
            let (folder, tokens) = (folder.path(), &tokens);
            let run = |comm| {
                scope.spawn(move || {
                    logits(folder, (split, sums), tokens, len, Comm::of_communicator(Box::new(comm))).unwrap()
                })
            };
            let threads: Vec<_> = comms.into_iter().map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let case = format!("seed {seed}, {ranks} ranks, {split:?}, {sums:?}, {len} of {} tokens", tokens.len());
        let other = difference(&alone, &expected);
        assert!(other < 1e-3, "{case}: {other}\n{}", slow.config);
        let bits = |logits: &[f32]| logits.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        for logits in found {
            let other = difference(&logits, &expected);
            assert!(other < 1e-3, "{case}: {other}\n{}", slow.config);
            let are_same = sums == Sums::Parts || bits(&logits) == bits(&alone);
            assert!(are_same, "{case}: the bits of one rank differ\n{}", slow.config);
        }
    }
}

#[test]
fn a_changed_configuration_is_refused_or_computed_as_it_says() {
    let cases = if env::var_os("DISCO_LONG_TESTS").is_some() { 20_000 } else { 300 };
    let folder = tempfile::tempdir().unwrap();
    let mut accepted = 0;
    for seed in 1..=cases {
        let mut pick = choices(seed);
        let (mut slow, tokens) = draw(&mut pick);
        let changed = change(&mut slow.config, &mut pick);
        write(&slow, folder.path());
        let how = (ExpertSplit::Within, Sums::Whole);
        let Ok(found) = logits(folder.path(), how, &tokens, tokens.len(), Comm::alone()) else {
            continue;
        };
        accepted += 1;
        let difference = difference(&found, &slow.logits(&tokens));
        assert!(difference < 1e-3, "seed {seed}, {changed}: {difference}\n{}", slow.config);
    }
    assert!((cases / 20..cases).contains(&accepted), "{accepted} of {cases} were accepted");
}
