//! A node's end: joins the controller, and passes on what it says to workers here.

mod bridge;
mod join;
mod upstream;

use std::sync::Arc;
use std::time::Instant;

use disco_core::link::Shared;
use disco_core::wire::{Assignment, Message};
use disco_core::{Channel, Error, Result};

use self::bridge::{Bridge, FAREWELL};
pub use self::join::JoinOptions;
use self::join::Joined;
use self::upstream::Upstream;
use crate::connection::Waker;
use crate::processes::Sink;
use crate::questions::Questions;

/// Serves as a node: joins the controller, makes a lane to the workers that it assigns, and passes on what either says,
/// until the session is over.
///
/// `lane` makes the lane, whose workers share what it is given; where they are processes, it passes their output on.
///
/// # Errors
/// The controller does not answer in time, refuses, or is gone; the workers can't be started, of which it is told; workers
/// that did not leave.
pub fn serve<F>(options: &JoinOptions, lane: F) -> Result<()>
where
    F: FnOnce(&Assignment, Arc<Shared>, Sink) -> Result<Arc<dyn Channel>>,
{
    let refused = |error: std::io::Error| Error::invalid(format!("the system refuses a node: {error}"));
    let waker = Arc::new(Waker::new().map_err(refused)?);
    let Joined { connection, incoming, assignment } = join::join(options, &waker)?;
    let questions = Arc::new(Questions::new(connection.clone()));
    let upstream = Arc::new(Upstream::new(connection.clone(), waker.clone(), assignment.workers.clone()));
    let shared = Arc::new(Shared::new(questions.clone()));
    let output = {
        let upstream = upstream.clone();
        Arc::new(move |worker, is_err, line: &[u8]| upstream.print(worker, is_err, line))
    };
    let made = lane(&assignment, shared, output).inspect_err(|error| {
        // It may be gone.
        _ = Message::Bye(error.to_string()).encode().and_then(|packet| connection.send_last(packet));
        connection.drain(FAREWELL);
    })?;
    tracing::info!(node = assignment.node, workers = ?assignment.workers, "joined");
    Bridge::new(connection, incoming, waker, questions, upstream, made, &assignment, Instant::now()).run()
}
