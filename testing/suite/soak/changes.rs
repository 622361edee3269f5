//! Changes of the workers of a random session, which goes on after them.

use std::sync::Arc;

use disco::error::ErrorKind;
use disco::{LaneSession, SessionKind, WorkerId, block_on};

use super::bystanders::Bystanders;
use super::calls;
use super::random::Random;
use super::session::{Setup, go_on, use_together};
use super::user::Wrong;
use super::watch;

/// Part of the error of a resize after the loss of a process of a node.
const NOT_WHOLE: &str = "only whole nodes";
/// Consequences of a loss in a session that has replaced the workers, and begun an epoch, without being asked.
pub(crate) const CONSEQUENCES: [&str; 2] = ["which is new since", "no communicator on this worker"];

/// Whether an error is a loss or its consequence in a session that replaces workers at once: the register of a bystander
/// is empty on the new worker, or a rank has found the loss before the session.
pub(crate) fn follows_from_loss(error: &disco::Error) -> bool {
    let text = error.to_string();
    matches!(error.kind(), ErrorKind::Lost { .. }) || CONSEQUENCES.iter().any(|it| text.contains(it))
}

/// Replaces the lost worker, with its node if that is lost, and goes on.
pub(crate) fn replace(setup: &Setup, session: &LaneSession, worker: usize, random: &mut Random) -> Wrong<()> {
    watch::step("replacement");
    if setup.replaces_at_once
        && random.chance(50)
        && let Some(error) = block_on(session.sync_all()).err().filter(|error| !follows_from_loss(error))
    {
        return Err(format!("sync_all during a replacement: {error}"));
    }
    let replaced = loop {
        match block_on(session.replace_lost()) {
            Ok(replaced) => break replaced.workers,
            // Of a worker or a node that ended because of the first loss.
            Err(disco::Error::Lost(_)) => {}
            Err(error) => return Err(format!("replace_lost: {error}")),
        }
    };
    if !replaced.contains(&WorkerId::new(worker as u32)) {
        return Err(format!("worker {worker} was lost, and {replaced:?} were replaced"));
    }
    go_on(setup, session)?;
    calls::outlive(session, random)?;
    use_together(session, random)?;
    block_on(session.sync_all()).map_err(|error| format!("after a replacement, sync_all: {error}"))
}

/// Gives the session another number of workers, or the same one, and goes on.
pub(crate) fn resize(setup: &mut Setup, session: &Arc<LaneSession>, random: &mut Random) -> Wrong<()> {
    let (per_node, least) = match setup.kind {
        SessionKind::Nodes => (setup.workers / setup.nodes, 2),
        // One that may be lost.
        SessionKind::Processes => (1, 2),
        _ => (1, 1),
    };
    let sizes: Vec<usize> = (least..=6).map(|nodes| nodes * per_node).filter(|size| size % setup.groups == 0).collect();
    let size = if sizes.is_empty() { setup.workers } else { random.pick(&sizes) };
    let bystanders = Bystanders::start(session, random.below(4), random);
    watch::step(format_args!("resize to {size}"));
    let resized = loop {
        match block_on(session.resize(size)) {
            // Of a worker or a node that ended because of an earlier loss.
            Err(disco::Error::Lost(_)) => {}
            other => break other,
        }
    };
    let ends = ["being resized", "left the session", "lost", "aborted", "no such worker"];
    bystanders.join(&[&ends, &CONSEQUENCES[..]].concat())?;
    match resized {
        Ok(_) => {}
        // A process of another node.
        Err(error) if setup.of_processes && error.to_string().contains(NOT_WHOLE) => return Ok(()),
        Err(error) => return Err(format!("resize: {error}")),
    }
    setup.workers = size;
    if setup.kind == SessionKind::Nodes {
        setup.nodes = size / per_node;
    }
    if session.world().size() != size {
        return Err(format!("{} workers after a resize to {size}", session.world().size()));
    }
    go_on(setup, session)?;
    use_together(session, random)?;
    block_on(session.sync_all()).map_err(|error| format!("after a resize, sync_all: {error}"))
}
