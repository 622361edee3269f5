//! New processes in the places of lost ones of a node. To the controller they are another node with the same number: a thread
//! of the node's program joins the lane to them, and serves it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use disco_core::wire::Assignment;
use disco_core::{Channel, Error, Result, WorkerRange};
use disco_engine::handshake::HANDSHAKE_TIMEOUT;

use super::stop::StopHandle;
use super::{JoinOptions, Made, join_and_serve};
use crate::remote::nodes::addresses;

/// How often a thread is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The threads that serve new workers, and what they need.
pub(super) struct Guests {
    options: JoinOptions,
    node: u32,
    /// The address of the node towards its controller.
    own: SocketAddr,
    /// The lane to the workers of the node's start.
    lane: Arc<dyn Channel>,
    threads: Vec<(StopHandle, JoinHandle<()>)>,
}

impl Guests {
    pub(super) fn new(options: &JoinOptions, node: u32, own: SocketAddr, lane: Arc<dyn Channel>) -> Self {
        Self { options: options.clone(), node, own, lane, threads: Vec::new() }
    }

    /// Whether the node has, or had, these workers itself.
    pub(super) fn have(&self, workers: WorkerRange) -> bool {
        self.lane.facts().workers.contains(workers.first())
    }

    /// Starts new workers in the places of lost ones. They join at one of `addresses`, each `HOST:PORT`.
    pub(super) fn start(&mut self, workers: WorkerRange, addresses: &[String]) {
        self.threads.retain(|(_, thread)| !thread.is_finished());
        let stop = StopHandle::new();
        let addresses: Vec<_> = addresses.iter().map(|address| addresses::on_interface_of(self.own, address)).collect();
        let options = JoinOptions {
            address: addresses.join(","),
            node: Some(self.node),
            per_node: Some(workers.len() as u32),
            is_spare: false,
            starter: None,
            // The controller listens already.
            start: HANDSHAKE_TIMEOUT,
            stop: Some(stop.clone()),
            report: |_| {},
            ..self.options.clone()
        };
        let lane = self.lane.clone();
        let serve = move || {
            let make = |assignment: &Assignment| replacement(&*lane, workers, assignment);
            let served = join_and_serve(&options, |joined, _, _| {
                make(&joined.assignment).map(|lane| Made { own: lane.clone(), all: lane })
            });
            if let Err(error) = served {
                tracing::warn!(%workers, %error, "new workers in the places of lost ones have ended");
            }
        };
        match thread::Builder::new().name("disco-guest".into()).spawn(serve) {
            Ok(thread) => self.threads.push((stop, thread)),
            Err(error) => tracing::warn!(%workers, %error, "no thread for new workers in the places of lost ones"),
        }
    }

    /// Waits until all of them have ended. They end with the session, or because the node has failed.
    pub(super) fn end(self, served: &Result<()>) {
        for (stop, thread) in self.threads {
            while !thread.is_finished() {
                // It may not serve yet.
                served.as_ref().err().into_iter().for_each(|why| _ = stop.request(why.to_string()));
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

/// The lane to new processes, as a session of processes makes it.
fn replacement(lane: &dyn Channel, workers: WorkerRange, assignment: &Assignment) -> Result<Arc<dyn Channel>> {
    if assignment.workers != workers || !assignment.behind.is_empty() {
        return Err(Error::protocol(format!(
            "the controller assigns {} in the places of {workers}",
            assignment.workers
        )));
    }
    let starts = lane.starts().ok_or_else(|| Error::state("the workers of the node are no processes"))?;
    let mut lanes = starts.replacement(workers)?;
    lanes.pop().filter(|_| lanes.is_empty()).ok_or_else(|| Error::state("there is no single lane to the new workers"))
}
