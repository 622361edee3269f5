//! A unit: what was launched at once, and what is done when a stream comes to it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use super::abi::Code;
use super::call::Call;
use super::clique::{Aborted, Clique};
use super::comm::{Comm, Seat};
use super::{background, collective, point_to_point, text};
use crate::counts;
use crate::cuda;
use crate::cuda::stream::Stream;
use crate::faults::Action;
use crate::settings;

/// What was launched at once.
pub(crate) struct Unit {
    comm: Arc<Comm>,
    calls: Vec<Arc<Call>>,
    fault: Option<Action>,
}

/// Where it is among all that the communicator was given.
struct Position {
    unit: u64,
    step: u64,
}

/// Gives a unit to a stream. The first that sends or receives, or every one if a
/// test wants it, is given in the background, if the communicator does not block.
pub(crate) fn launch(stream: &Arc<Stream>, unit: Unit) -> Result<(), Code> {
    let comm = Arc::clone(&unit.comm);
    if stream.device().ordinal != comm.device.ordinal {
        return Err(text::refuse(Code::INVALID_USAGE, "the stream is not of the communicator's device"));
    }
    stream.device().check().map_err(|code| {
        text::refuse(Code::UNHANDLED_CUDA_ERROR, format!("the device has failed before, with CUDA error {}", code.0))
    })?;
    counts::unit();
    let steps = unit.calls.iter().filter(|call| call.kind.is_collective()).count() as u64;
    let position = Position { unit: comm.launched.fetch_add(1, SeqCst), step: comm.steps.fetch_add(steps, SeqCst) };
    let connects = unit.calls.iter().any(|call| !call.kind.is_collective());
    let is_first = connects && !comm.has_connected.swap(true, SeqCst);
    let work = Box::new(move || unit.run(&position));
    let is_in_background = !comm.is_blocking && (is_first || settings::read().connects_always());
    if !is_in_background {
        stream.push(work);
        return Ok(());
    }
    comm.begin();
    let stream = Arc::clone(stream);
    thread::spawn(move || {
        background::linger();
        stream.push(work);
        comm.end();
    });
    Err(Code::IN_PROGRESS)
}

impl Unit {
    /// Calls that have been checked.
    pub(crate) fn new(comm: Arc<Comm>, calls: Vec<Call>, fault: Option<Action>) -> Self {
        let fault = fault.or_else(|| calls.iter().find_map(|call| call.fault));
        Self { comm, calls: calls.into_iter().map(Arc::new).collect(), fault }
    }

    fn run(&self, position: &Position) -> Result<(), cuda::abi::Code> {
        let Some(Seat { clique, rank }) = self.comm.seat_if_any() else { return Ok(()) };
        // Units of a communicator follow one another, whatever streams they are on.
        let begun = clique.wait(&self.comm, |state| {
            let is_next = !self.comm.is_aborted() && state.finished[*rank] == position.unit;
            is_next.then(|| state.is_running[*rank] = true)
        });
        let outcome = match begun {
            Ok(()) => self.work(clique, *rank, position),
            Err(Aborted) => Ok(()),
        };
        clique.change(|state| {
            state.finished[*rank] += 1;
            state.is_running[*rank] = false;
        });
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
                    self.comm.fail(Code(code), "a test wants this fault");
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
        // An abort ends it without completing.
        let _: Result<(), Aborted> = self.communicate(clique, rank, position.step);
        Ok(())
    }

    /// Does the calls of a rank that has come to them, with the other ranks.
    pub(crate) fn communicate(&self, clique: &Clique, rank: usize, first_step: u64) -> Result<(), Aborted> {
        if let Some(link) = clique.link() {
            return link.communicate(&self.comm, clique, first_step, &self.calls);
        }
        let (collectives, others) = self.calls.iter().partition::<Vec<_>, _>(|call| call.kind.is_collective());
        let letters = point_to_point::post(clique, rank, &others);
        for (step, call) in (first_step..).zip(collectives) {
            if let Err(aborted) = collective::meet(&self.comm, clique, rank, step, call) {
                point_to_point::withdraw(clique, &letters);
                return Err(aborted);
            }
        }
        point_to_point::wait(&self.comm, clique, &letters)
    }
}
