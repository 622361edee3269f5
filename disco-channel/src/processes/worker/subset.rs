//! Workers of subsets: threads beside the worker of a process, which join another session.

use std::str;
use std::sync::Arc;
use std::thread;

use disco_core::session::JOIN_SUBSET;
use disco_core::{Error, Link, Result, WorkerContext, register_function, worker};

use super::serve_beside;
use crate::processes::invitation::Invitation;

register_function!(JOIN_SUBSET, join_subset);

/// Starts a thread that joins a subset of this session, beside worker `beside`. The other workers do nothing.
fn join_subset(ctx: &mut WorkerContext, beside: u32, invitation: Vec<u8>) -> Result<()> {
    if ctx.worker() != beside.into() {
        return Ok(());
    }
    // The invitation is a secret, so it is not in the error.
    let refused = |_| Error::invalid(format!("{JOIN_SUBSET}: the argument is no invitation"));
    let text = str::from_utf8(&invitation).map_err(|_| Error::invalid("not a text")).and_then(Invitation::parse);
    let (invitation, link) = (text.map_err(refused)?, ctx.link().clone());
    let name = format!("disco-worker-{}", invitation.worker.index());
    let started = thread::Builder::new().name(name).spawn(move || join(&invitation, &link));
    if let Err(error) = started {
        // The subset does not start; this session goes on.
        tracing::error!(%error, "{} can't start the thread of a worker of a subset", ctx.worker());
    }
    Ok(())
}

fn join(invitation: &Invitation, beside: &Arc<Link>) {
    if let Err(error) = serve_beside(Some(beside), invitation, worker::run) {
        tracing::info!(worker = %invitation.worker, %error, "a worker of a subset has ended");
    }
}
