//! Groups: a thread's calls between start and end are checked together and launched as one unit per communicator.

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;

use super::abi::Code;
use super::call::{Call, Kind};
use super::comm::Comm;
use super::unit::{self, Unit};
use super::{background, lifecycle, text};
use crate::cuda::memory::Span;
use crate::cuda::stream::Stream;
use crate::settings::faults::{self, Action};

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

#[derive(Default)]
struct Group {
    depth: usize,
    /// Error of the first rejected call; the whole group fails with it.
    error: Option<Code>,
    parts: Vec<Part>,
    /// Cleanup of aborted communicators, which runs at the end of the group.
    aborted: Vec<Arc<Comm>>,
}

/// Calls of one communicator.
struct Part {
    comm: Arc<Comm>,
    stream: Arc<Stream>,
    calls: Vec<Call>,
}

/// `ncclGroupStart`
pub(crate) fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Whether this thread is in a group.
pub(crate) fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Defers the second half of an abort to the end of the group. Returns the communicator if there is no group.
pub(crate) fn defer(comm: Arc<Comm>) -> Option<Arc<Comm>> {
    GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(comm);
        }
        group.aborted.push(comm);
        None
    })
}

/// Records the result of a call for its group.
pub(crate) fn note(result: Result<(), Code>) -> Code {
    if let Err(code) = result {
        GROUP.with_borrow_mut(|group| {
            if group.depth > 0 {
                group.error.get_or_insert(code);
            }
        });
    }
    Code::of(result)
}

/// Adds a call to the group, or launches it if there is no group.
pub(crate) fn add(comm: Arc<Comm>, stream: Arc<Stream>, call: Call) -> Result<(), Code> {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Ok(Some((comm, stream, call)));
        }
        match group.parts.iter_mut().find(|part| Arc::ptr_eq(&part.comm, &comm)) {
            None => group.parts.push(Part { comm, stream, calls: vec![call] }),
            Some(part) if Arc::ptr_eq(&part.stream, &stream) => part.calls.push(call),
            Some(_) => {
                let why = "the double supports only one stream for the calls of a communicator in a group";
                return Err(text::refuse(Code::INVALID_USAGE, why));
            }
        }
        Ok(None)
    })?;
    let Some((comm, stream, call)) = alone else { return Ok(()) };
    check(&comm, std::slice::from_ref(&call))?;
    unit::launch_all(vec![(stream, Unit::new(comm, vec![call], None))])
}

/// `ncclGroupEnd`
pub(crate) fn end() -> Result<(), Code> {
    let ended = GROUP.with_borrow_mut(|group| -> Result<Group, Code> {
        let depth = group.depth.checked_sub(1);
        group.depth = depth.ok_or_else(|| text::refuse(Code::INVALID_USAGE, "ncclGroupEnd without ncclGroupStart"))?;
        Ok(if group.depth == 0 { mem::take(group) } else { Group::default() })
    })?;
    ended.aborted.iter().for_each(|comm| lifecycle::reclaim(comm));
    if let Some(code) = ended.error {
        return Err(code);
    }
    let mut units = Vec::with_capacity(ended.parts.len());
    for Part { comm, stream, calls } in ended.parts {
        let fault = match faults::next("ncclGroupEnd", comm.membership()?.rank) {
            Some(Action::Code(code)) => return Err(text::refuse(Code(code), "ncclGroupEnd: injected fault")),
            Some(Action::Block) => return background::block(&comm),
            fault => fault,
        };
        drop(comm.begin_call()?);
        check(&comm, &calls)?;
        units.push((stream, Unit::new(comm, calls, fault)));
    }
    unit::launch_all(units)
}

/// Checks that calls may form one unit: NCCL does not order them, so no call may access memory that another call
/// writes.
fn check(comm: &Comm, calls: &[Call]) -> Result<(), Code> {
    let rank = comm.membership()?.rank;
    let to_self = |kind| calls.iter().filter(|call| call.kind == kind && call.root == rank).count();
    if to_self(Kind::Send) != to_self(Kind::Recv) {
        let why = "the numbers of sends to the own rank and receives from it differ in one group";
        return Err(text::refuse(Code::INVALID_USAGE, why));
    }
    for (i, one) in calls.iter().enumerate() {
        for other in &calls[i + 1..] {
            if !touch(one, other) {
                continue;
            }
            let is_collective = one.kind.is_collective() || other.kind.is_collective();
            let code = if is_collective { Code::INVALID_USAGE } else { Code::INVALID_ARGUMENT };
            return Err(text::refuse(code, format!("buffers of one group overlap: {one} and {other}")));
        }
    }
    Ok(())
}

/// Whether one call writes memory that the other reads or writes.
fn touch(one: &Call, other: &Call) -> bool {
    let overlap = |one: &Option<Span>, other: &Option<Span>| {
        one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one.overlaps(other))
    };
    overlap(&one.recv, &other.recv) || overlap(&one.recv, &other.send) || overlap(&one.send, &other.recv)
}
