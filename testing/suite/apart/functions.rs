//! Worker functions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::{fs, process};

use disco::{Json, Result, WorkerContext};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

disco::register_function!("apart.pid", pid);
disco::register_function!("apart.number", number);
disco::register_function!("apart.note", note);
disco::register_function!("apart.take_notes", take_notes);
disco::register_function!("apart.die", die);

/// The numbers that a worker has noted, and how often.
#[derive(Debug, Default)]
struct Notes(RefCell<BTreeMap<i64, i64>>);

fn pid(_: &mut WorkerContext) -> Result<i64> {
    Ok(process::id().into())
}

fn number(ctx: &mut WorkerContext) -> Result<i64> {
    Ok(ctx.worker().wire())
}

fn note(ctx: &mut WorkerContext, number: i64) -> Result<i64> {
    *ctx.state::<Notes>().0.borrow_mut().entry(number).or_default() += 1;
    Ok(number)
}

fn take_notes(ctx: &mut WorkerContext) -> Result<Json<BTreeMap<i64, i64>>> {
    Ok(Json(ctx.state::<Notes>().0.take()))
}

/// How a worker ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Death {
    /// Killed by another process.
    Kill,
    Abort,
    StackOverflow,
    /// An allocation fails, under a limit of addresses.
    Allocation,
}

impl Death {
    pub(crate) const ALL: [Self; 4] = [Self::Kill, Self::Abort, Self::StackOverflow, Self::Allocation];

    /// The end of the error.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Kill => "its process ended: signal: 9 (SIGKILL)",
            _ => "its process ended: signal: 6 (SIGABRT)",
        }
    }
}

/// Ends one worker.
fn die(ctx: &mut WorkerContext, worker: u32, how: i64) -> Result<()> {
    if ctx.worker() != worker.into() {
        return Ok(());
    }
    match Death::ALL[how as usize] {
        Death::Kill => unreachable!("another process does this"),
        Death::Abort => process::abort(),
        Death::StackOverflow => _ = overflow(1),
        Death::Allocation => exhaust(),
    }
    Ok(())
}

#[expect(unconditional_recursion, reason = "it overflows the stack")]
fn overflow(depth: u64) -> u64 {
    let frame = black_box([depth; 512]);
    overflow(depth + 1) + frame[0]
}

fn exhaust() {
    let pages: u64 = fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
    let limit = Rlimit { current: Some(pages * 4096 + (16 << 20)), ..getrlimit(Resource::As) };
    setrlimit(Resource::As, limit).unwrap();
    black_box(vec![1u8; 1 << 30]);
}
