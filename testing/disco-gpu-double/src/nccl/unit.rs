//! Units: calls that are launched together, and their execution when the stream reaches them.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use super::abi::Code;
use super::background::Failure;
use super::call::Call;
use super::captured::InGraph;
use super::clique::{Aborted, Clique};
use super::comm::{Comm, Membership};
use super::connection::Connection;
use super::{background, collective, connection, point_to_point, text};
use crate::cuda;
use crate::cuda::stream::{Stream, Work};
use crate::nccl::tally;
use crate::settings;
use crate::settings::faults::Action;

/// Calls that are launched together.
pub(crate) struct Unit {
    comm: Arc<Comm>,
    calls: Vec<Arc<Call>>,
    fault: Option<Action>,
    /// Connections that must be made first.
    connections: Vec<Connection>,
    /// Set if the unit belongs to a graph.
    _in_graph: Option<InGraph>,
}

/// Position among all units and collectives of the communicator.
struct Position {
    unit: u64,
    collective: u64,
}

/// Submits units of several communicators to their streams. All connections are requested before the first is waited
/// for.
pub(crate) fn launch_all(mut units: Vec<(Arc<Stream>, Unit)>) -> Result<(), Code> {
    for (_, unit) in &mut units {
        unit.request_connections()?;
    }
    let mut outcome = Ok(());
    for (stream, unit) in units {
        match launch(&stream, unit) {
            Err(Code::IN_PROGRESS) => outcome = Err(Code::IN_PROGRESS),
            other => other?,
        }
    }
    outcome
}

/// Submits a unit to a stream once its ranks are connected. On a non-blocking communicator this happens in the
/// background if ranks must be connected, and at every launch since the version of NCCL that starts a thread per
/// launch.
fn launch(stream: &Arc<Stream>, mut unit: Unit) -> Result<(), Code> {
    let comm = Arc::clone(&unit.comm);
    if stream.device().ordinal != comm.device.ordinal {
        return Err(text::refuse(Code::INVALID_USAGE, "the stream belongs to a device other than the communicator's"));
    }
    stream.device().check().map_err(|code| {
        text::refuse(Code::UNHANDLED_CUDA_ERROR, format!("the device has the sticky CUDA error {}", code.0))
    })?;
    let Membership { clique, rank } = comm.membership()?;
    let connections = mem::take(&mut unit.connections);
    let submit: Box<dyn FnOnce(&Stream) + Send> = match stream.capture.current() {
        Some(_) => {
            let _in_graph = Some(InGraph::new(&unit.comm));
            let unit = Arc::new(Unit { _in_graph, ..unit });
            Box::new(move |stream| stream.launch(Arc::new(move || work(Arc::clone(&unit)))))
        }
        None => {
            let work = work(Arc::new(unit));
            Box::new(move |stream| stream.push(work))
        }
    };
    let is_at_once = connections.is_empty() && !settings::read().launches_in_background();
    if comm.is_blocking || is_at_once || clique.ranks() == 1 {
        let connected = connection::connect(&comm, clique, *rank, &connections);
        submit(stream);
        return connected.map_err(|aborted| {
            let Failure(code, why) = aborted.into();
            text::refuse(code, why)
        });
    }
    comm.begin();
    let (stream, clique, rank, own) = (Arc::clone(stream), Arc::clone(clique), *rank, Arc::clone(&comm));
    thread::spawn(move || {
        background::delay_background();
        let connected = connection::connect(&own, &clique, rank, &connections);
        submit(&stream);
        match connected.map_err(Failure::from) {
            Ok(()) => own.end(),
            Err(Failure(code, why)) => own.fail(code, &why),
        }
    });
    Err(Code::IN_PROGRESS)
}

/// The work of a unit, ordered after all earlier units of its communicator.
pub(super) fn work(unit: Arc<Unit>) -> Work {
    tally::unit();
    let collectives = unit.calls.iter().filter(|call| call.kind.is_collective()).count() as u64;
    let comm = &unit.comm;
    let position = Position {
        unit: comm.launched.fetch_add(1, SeqCst),
        collective: comm.collectives.fetch_add(collectives, SeqCst),
    };
    Box::new(move || unit.run(&position))
}

impl Unit {
    /// A unit of checked calls.
    pub(crate) fn new(comm: Arc<Comm>, calls: Vec<Call>, fault: Option<Action>) -> Self {
        let fault = fault.or_else(|| calls.iter().find_map(|call| call.fault));
        let launched = calls.iter().filter(|call| call.kind.is_collective()).count();
        let calls = calls.into_iter().map(|call| Arc::new(Call { launched, ..call })).collect();
        Self { comm, calls, fault, connections: Vec::new(), _in_graph: None }
    }

    fn request_connections(&mut self) -> Result<(), Code> {
        let Membership { clique, rank } = self.comm.membership()?;
        self.connections = connection::missing(&self.comm, &self.calls);
        connection::request(clique, *rank, &self.connections);
        Ok(())
    }

    fn run(&self, position: &Position) -> Result<(), cuda::abi::Code> {
        let Some(Membership { clique, rank }) = self.comm.membership_if_any() else { return Ok(()) };
        // Units of a communicator run one after the other, even on different streams.
        let begun = clique.wait(&self.comm, |state| {
            let is_next = !self.comm.is_aborted() && state.finished[*rank] == position.unit;
            is_next.then_some(())
        });
        let outcome = match begun {
            Ok(()) => self.work(clique, *rank, position),
            Err(Aborted) => Ok(()),
        };
        clique.change(|state| state.finished[*rank] += 1);
        outcome
    }

    fn work(&self, clique: &Clique, rank: usize, position: &Position) -> Result<(), cuda::abi::Code> {
        if clique.lock().has_failed {
            return Ok(());
        }
        match self.fault {
            None => {}
            Some(fault) => {
                if let Action::Async(code) = fault {
                    self.comm.fail(Code(code), "injected fault");
                }
                clique.wait_for_abort(&self.comm, None);
                return Ok(());
            }
        }
        let live = self.calls.iter().try_for_each(|call| call.is_live());
        if let Err(code) = live.and_then(|()| self.comm.device.check()) {
            self.comm.fail(Code::UNHANDLED_CUDA_ERROR, &format!("CUDA error {}", code.0));
            return Err(code);
        }
        match self.communicate(clique, rank, position.collective) {
            Ok(()) => Ok(()),
            // The unit ends without completing. It may have written to all buffers it has access to.
            Err(Aborted) => collective::overwrite_outputs(clique, position.collective),
        }
    }

    /// Runs the calls of a rank, together with the other ranks.
    pub(crate) fn communicate(&self, clique: &Clique, rank: usize, first_collective: u64) -> Result<(), Aborted> {
        if let Some(link) = clique.link() {
            return link.communicate(&self.comm, clique, first_collective, &self.calls);
        }
        let (collectives, others) = self.calls.iter().partition::<Vec<_>, _>(|call| call.kind.is_collective());
        let transfers = point_to_point::submit(clique, rank, &others);
        for (collective, call) in (first_collective..).zip(collectives) {
            if let Err(aborted) = collective::meet(&self.comm, clique, rank, collective, call) {
                point_to_point::withdraw(clique, &transfers);
                return Err(aborted);
            }
        }
        point_to_point::wait(&self.comm, clique, &transfers)
    }
}
