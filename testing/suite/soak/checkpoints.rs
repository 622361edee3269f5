//! Tensors that go through a checkpoint.

use disco::checkpoint::{self, Folder, Layout};
use disco::{DRef, LaneSession, Mesh, Scope, block_on};

use super::random::Random;
use super::user::Wrong;
use super::watch;

/// Saves a tensor, whose elements differ between the workers, and loads it. Some saves are abandoned first.
pub(crate) fn through(session: &LaneSession, handle: &DRef, random: &mut Random) -> Wrong<DRef> {
    let world = session.world();
    let mesh = Mesh::new([("x", world.groups()), ("y", world.group_size())]);
    let all = mesh.and_then(|mesh| mesh.along(&["y", "x"])).map_err(|error| error.to_string())?;
    let layout = match random.below(4) {
        0 => Layout::split(0),
        1 => Layout::split_over(0, all),
        // In each group there are other elements, which the layout does not allow.
        2 if world.groups() == 1 => Layout::split_over(0, Scope::Group),
        _ => Layout::PerWorker,
    };
    let (abandoned, reuses_memory) = (random.chance(30), random.chance(70));
    watch::step(format_args!(
        "a checkpoint, {layout}, after an abandoned one: {abandoned}, memory of copies is reused: {reuses_memory}"
    ));
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let target = Folder::new(folder.path()).reuse_memory(reuses_memory);
    let moved = async {
        let entries = [("x", handle, layout)];
        if abandoned {
            drop(checkpoint::save(session, target.clone(), 1, entries.clone()).await?);
        }
        checkpoint::save(session, target, 1, entries).await?.await?;
        checkpoint::load(session, folder.path()).await
    };
    let loaded = block_on(moved).map_err(|error| error.to_string())?.ok_or("the folder has no checkpoint")?;
    match (loaded.tensor("x"), &loaded.refused[..]) {
        (Ok(handle), []) => Ok(handle.clone()),
        other => Err(format!("a checkpoint was refused: {other:?}")),
    }
}
