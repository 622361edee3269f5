//! Workers of subsets: threads in the process of a worker of the parent session, which join the subset.
//!
//! ```text
//! controller                                            process of the parent's worker 3
//! ProcessLane or NodeLane of the subset, starting
//!   SubsetPart::invite ──▶ call of `disco.join_subset` ─▶ worker 3's thread starts another one
//!   listener ◀──────────── hello ───────────────────────  thread `disco-subset`, worker 0 of the subset
//! ```
//!
//! In a worker's process or on its node, such a thread is another worker or node, as if it were in a process of its own,
//! except that it neither ends the process nor chooses its device. Workers that are threads of the controller's process
//! need no invitation: their lane is another lane to threads.

use std::str;
use std::sync::Arc;
use std::thread;

use disco_core::activity::TimeLimit;
use disco_core::session::JOIN_SUBSET;
use disco_core::{Error, Link, Result, WorkerContext, register_function, worker};

use crate::remote::nodes::{self, NodeInvitation};
use crate::remote::processes::{self, Invitation};
use crate::threads::ThreadLane;

register_function!(JOIN_SUBSET, join_subset, limit: TimeLimit::Own);

/// An invitation to a subset: that of a process, or of a node with one worker.
enum SubsetInvitation {
    Process(Invitation),
    Node(NodeInvitation),
}

/// Starts a thread that joins a subset of this session, in the process of worker `parent`. The other workers do nothing.
fn join_subset(ctx: &mut WorkerContext, parent: u32, invitation: Vec<u8>) -> Result<()> {
    if ctx.worker() != parent.into() {
        return Ok(());
    }
    let invitation = SubsetInvitation::parse(&invitation)
        // Without the argument, which is a secret.
        .ok_or_else(|| Error::invalid(format!("{JOIN_SUBSET}: the argument is no invitation")))?;
    let (worker, link) = (ctx.worker(), ctx.link().clone());
    let join = move || {
        if let Err(error) = invitation.join(&link) {
            tracing::info!(%error, "a thread of a subset beside {worker} has ended");
        }
    };
    if let Err(error) = thread::Builder::new().name("disco-subset".to_owned()).spawn(join) {
        // The subset does not start; this session goes on.
        tracing::error!(%error, "{worker} can't start the thread of a worker of a subset");
    }
    Ok(())
}

impl SubsetInvitation {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?;
        let node = NodeInvitation::parse(text).map(Self::Node);
        node.or_else(|| Invitation::parse(text).ok().map(Self::Process))
    }

    /// Serves until the subset ends.
    fn join(&self, parent: &Arc<Link>) -> Result<()> {
        match self {
            Self::Process(invitation) => processes::serve_in_subset(Some(parent), invitation, worker::run),
            Self::Node(invitation) => nodes::serve(&invitation.options(), |assignment, shared, _| {
                let lane = ThreadLane::to_workers(assignment.workers, shared, assignment.config);
                Ok(Arc::new(lane.with_parents(vec![parent.clone(); assignment.workers.len()])))
            }),
        }
    }
}
