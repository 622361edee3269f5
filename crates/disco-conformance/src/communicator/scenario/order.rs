//! Scenario: several threads of the controller submit to one session. All workers must execute the calls in the same
//! order.

use std::cell::RefCell;
use std::rc::Rc;
use std::thread;

use disco_core::{CommunicatorExt, DType, Error, Opaque, Reduction, Result, Session, Shape, Tensor, WorkerContext};
use pollster::block_on;

use crate::communicator::fixture::{self, HostMemory};
use crate::communicator::verdicts::CheckResult;

const THREADS: i64 = 4;
const CALLS: i64 = 40;

const START: &str = "disco.conformance.start_log";
const APPEND: &str = "disco.conformance.append_to_log";
const READ: &str = "disco.conformance.read_log";

disco_core::register_function!(START, start);
disco_core::register_function!(APPEND, append);
disco_core::register_function!(READ, read);

/// The calls of one worker, in its order.
struct Log(RefCell<Vec<i64>>);

fn start(_: &mut WorkerContext) -> Result<Opaque> {
    Ok(Opaque::new(Log(RefCell::default())))
}

/// Appends a call to the log. The collectives fail or hang if workers are in different calls.
fn append(ctx: &mut WorkerContext, log: Rc<Log>, call: i64) -> Result<()> {
    log.0.borrow_mut().push(call);
    let mine = ctx.empty(DType::I32, [1])?;
    fixture::upload(ctx, &mine, &(call as i32).to_le_bytes(), HostMemory::Shared)?;
    let seen = |ctx: &mut WorkerContext, tensor: &Tensor, reduction| {
        let most = ctx.empty(DType::I32, [1])?;
        let comm = ctx.comm()?;
        comm.all_reduce(tensor, &most, reduction)?;
        comm.synchronize()?;
        fixture::download(ctx, &most, HostMemory::Shared)
    };
    let (least, most) = (seen(ctx, &mine, Reduction::Min)?, seen(ctx, &mine, Reduction::Max)?);
    if least == most {
        Ok(())
    } else {
        Err(Error::invalid(format!("workers are in different calls; this one is in {call}")))
    }
}

fn read(_: &mut WorkerContext, log: Rc<Log>) -> Result<Shape> {
    Ok(Shape::from(log.0.borrow().clone()))
}

pub(super) async fn run(session: &dyn Session) -> CheckResult<usize> {
    let logs = submit(session).await.map_err(|error| error.to_string())?;
    let Some((first, rest)) = logs.split_first() else { return Ok(0) };
    if first.len() != (THREADS * CALLS) as usize {
        return Err(format!("worker 0 saw {} of {} calls", first.len(), THREADS * CALLS));
    }
    if let Some(other) = rest.iter().position(|log| log != first) {
        return Err(format!("worker 0 and worker {} saw different orders", other + 1));
    }
    for thread in 0..THREADS {
        let own: Vec<i64> = first.iter().copied().filter(|call| call / CALLS == thread).collect();
        if !own.is_sorted() {
            return Err(format!("the calls of one thread changed their order: {own:?}"));
        }
    }
    Ok(first.len() * logs.len())
}

/// The log of each worker.
async fn submit(session: &dyn Session) -> Result<Vec<Shape>> {
    let log = session.call(&session.function(START).await?, ()).await?;
    let append = session.function(APPEND).await?;
    let calls = |thread: i64| {
        let (log, append) = (&log, &append);
        move || (0..CALLS).try_for_each(|call| block_on(session.call(append, (log, thread * CALLS + call))).map(drop))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(calls(thread))).collect();
        let lost = |_| Err(Error::invalid("a thread of the controller panicked"));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(lost))
    })?;
    let read = session.call(&session.function(READ).await?, (&log,)).await?;
    let mut logs = Vec::new();
    for worker in session.world().workers() {
        logs.push(session.get(&read, worker).await?);
    }
    Ok(logs)
}
