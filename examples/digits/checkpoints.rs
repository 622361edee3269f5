//! Checkpoints of the training: the state after each epoch, from which a later run continues.

use std::path::Path;

use disco::checkpoint::{self, Folder, Saving};
use disco::{DRef, Session};

use super::train::{Epoch, Failure};

/// Number of checkpoints to keep.
const KEPT: usize = 2;
/// The note with the results so far.
const RESULTS: &str = "results";

/// The state of the training between two epochs.
pub(crate) struct State {
    pub(crate) params: DRef,
    pub(crate) velocity: DRef,
    pub(crate) results: Results,
}

/// The results so far.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Results {
    /// The loss of each step.
    pub(crate) losses: Vec<f32>,
    pub(crate) epochs: Vec<Epoch>,
}

/// The newest state in the folder that is not damaged; none if the folder has no checkpoint.
pub(crate) async fn load(session: &dyn Session, folder: &Path) -> Result<Option<State>, Failure> {
    let Some(loaded) = checkpoint::load(session, folder).await? else { return Ok(None) };
    for refused in &loaded.refused {
        eprintln!("digits: {}; continuing from `{}`", refused.reason, loaded.path.display());
    }
    let missing = || format!("`{}` is not a checkpoint of digits: it has no note `{RESULTS}`", loaded.path.display());
    let results = loaded.note(RESULTS).ok_or_else(missing)?;
    let (params, velocity) = (loaded.tensor("params")?.clone(), loaded.tensor("velocity")?.clone());
    Ok(Some(State { params, velocity, results: serde_json::from_str(results)? }))
}

/// Starts to save the state. The training may go on; the checkpoint is complete when the result has been awaited.
pub(crate) async fn save<'s>(session: &'s dyn Session, folder: &Path, state: &State) -> Result<Saving<'s>, Failure> {
    // The tensors have the same sizes in each save.
    let folder = Folder::new(folder).keep(KEPT).reuse_memory(true);
    let tensors = [("params", &state.params), ("velocity", &state.velocity)];
    let saving = checkpoint::save(session, folder, state.results.losses.len() as u64, tensors).await?;
    Ok(saving.note(RESULTS, serde_json::to_string(&state.results)?))
}
