//! NCCL's C functions, under their names in `nccl.h`, and RCCL's own. A pointer that may be null is an `Option`.

#![allow(non_snake_case, reason = "the interface's names")]

pub mod collective;
pub mod communicator;
pub mod group;
pub mod library;
pub mod memory;
pub mod operator;
pub mod point_to_point;
pub mod rccl;

use super::abi::{Code, CommHandle, Stream};
use super::call::{Args, Call};
use super::{comm, text};
use crate::cuda::stream::{self, PER_THREAD};
use crate::nccl::tally;
use crate::nccl::{background, group as groups};
use crate::settings::faults::Action;

/// Writes a result to an output parameter that may be null.
fn write_output<T>(at: Option<&mut T>, answer: T) -> Result<(), Code> {
    *at.ok_or_else(null)? = answer;
    Ok(())
}

fn null() -> Code {
    text::refuse(Code::INVALID_ARGUMENT, "an output pointer is null")
}

/// The body of all communication functions.
fn communicate(args: Args, comm: CommHandle, stream: Stream) -> Code {
    tally::call();
    groups::note(submit(args, comm, stream, None))
}

/// Checks a call and submits it. The fault `outer_fault` has priority over the injected fault of the function.
fn submit(args: Args, comm: CommHandle, stream: Stream, outer_fault: Option<Action>) -> Result<(), Code> {
    let comm = comm::find(comm)?;
    let turn = comm.begin_call()?;
    let membership = comm.membership()?;
    if comm.is_finalized() {
        return Err(text::refuse(Code::INVALID_USAGE, "the communicator was finalized"));
    }
    let fault = background::fault(args.kind.function(), membership.rank)?;
    if fault == Some(Action::Block) {
        return background::block(&comm);
    }
    let Some(call) = Call::check(args, &comm, membership, outer_fault.or(fault))? else { return Ok(()) };
    if stream.addr() == PER_THREAD {
        let why = "the per-thread default stream is another stream on the threads of the library";
        return Err(text::refuse(Code::INVALID_ARGUMENT, format!("{}: {why}", args.kind.function())));
    }
    let stream = stream::find(stream, comm.device).map_err(|_| {
        text::refuse(Code::INVALID_ARGUMENT, format!("{}: there is no such stream", args.kind.function()))
    })?;
    drop(turn);
    groups::add(comm, stream, call)
}
