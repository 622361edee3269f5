//! Configurations of language models: a model that is accepted gives the logits of plain loops.

#![no_main]

// The reference and its models are those of the tests of `disco-models`.
#[path = "../../../crates/disco-models/tests/transformer/draw.rs"]
mod draw;
#[path = "../../../crates/disco-models/tests/transformer/ours.rs"]
mod ours;
#[path = "../../../crates/disco-models/tests/transformer/slow.rs"]
mod slow;

use std::path::PathBuf;
use std::sync::LazyLock;

use disco_candle::Comm;
use disco_models::{ExpertSplit, ModelError};

disco_fuzz::target!(check, seeds);

/// The folder of the models, in memory where there is such a file system.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = PathBuf::from("/dev/shm");
    let parent = if shared.is_dir() { shared } else { std::env::temp_dir() };
    let folder = parent.join(format!("disco-fuzz-model-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for models");
    folder
});

/// The bytes choose a model, a text and changes of the configuration.
fn check(bytes: &[u8]) -> Result<(), ModelError> {
    let mut left = bytes.iter();
    let mut pick = |choices: usize| left.next().map_or(0, |byte| usize::from(*byte) % choices);
    let changes = pick(3);
    let (mut slow, tokens) = draw::draw(&mut pick);
    let changes: Vec<_> = (0..changes).map(|_| draw::change(&mut slow.config, &mut pick)).collect();
    ours::write(&slow, &FOLDER);
    let found = ours::logits(&FOLDER, ExpertSplit::Within, &tokens, tokens.len(), Comm::alone())?;
    let difference = ours::difference(&found, &slow.logits(&tokens));
    assert!(difference < 1e-3, "{changes:?}: {difference}\n{}", slow.config);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    // Without changes, one of each family.
    (0..12)
        .map(|family| {
            std::iter::once(0).chain([family]).chain((0..200u8).map(|i| i.wrapping_mul(7) ^ family)).collect()
        })
        .collect()
}
