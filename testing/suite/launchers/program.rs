//! The program that the tasks run.

use std::env;
use std::process::ExitCode;

use disco::{Builder, CommunicatorExt as _, DType, LaneSession, Reduction, WorkerContext, block_on};
use rustix::process::{Signal, getpid, kill_process};

use super::PART;

disco::register_function!("launchers.sum", sum);
disco::register_function!("tests.name", name);
disco::register_function!("tests.die", die);
disco::register_function!("tests.process", process);
disco::register_function!("tests.fail", fail);
disco::register_function!("tests.lose_worker_0", lose_worker_0);

/// Worker function: the sum of 1, 2, … over all workers, by a collective.
fn sum(ctx: &mut WorkerContext) -> disco::Result<f32> {
    let x = ctx.empty(DType::F32, 1)?;
    x.write(&[ctx.worker().index() as f32 + 1.0])?;
    ctx.comm()?.all_reduce_in_place(&x, Reduction::Sum)?;
    Ok(x.to_vec::<f32>()?[0])
}

/// Worker function: the worker and the launcher's number of its task.
fn name(ctx: &mut WorkerContext) -> disco::Result<String> {
    let task = ["RANK", "SLURM_PROCID"].into_iter().find_map(|name| env::var(name).ok());
    Ok(format!("{} of {} in task {}", ctx.worker(), ctx.world().size(), task.unwrap_or_default()))
}

/// Worker function: the last worker kills its process.
fn die(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker().index() + 1 == ctx.world().size() {
        kill_process(getpid(), Signal::KILL).map_err(|error| disco::Error::invalid(error.to_string()))?;
    }
    Ok(())
}

/// Worker function: the id of the worker's process.
fn process(_: &mut WorkerContext) -> disco::Result<i64> {
    Ok(std::process::id().into())
}

/// Worker function: fails.
fn fail(_: &mut WorkerContext) -> disco::Result<()> {
    Err(disco::Error::invalid("no weights"))
}

/// Worker function: worker 0 kills its process, in which the controller is unless `Builder::apart` has made worker 0 a process of its own.
fn lose_worker_0(ctx: &mut WorkerContext) -> disco::Result<()> {
    if ctx.worker().index() == 0 {
        kill_process(getpid(), Signal::KILL).map_err(|error| disco::Error::invalid(error.to_string()))?;
    }
    Ok(())
}

/// Runs the part of the program that the environment names. An error is printed as programs print it.
pub(crate) fn run() -> Option<ExitCode> {
    let part = env::var(PART).ok()?;
    disco::init();
    let ended = match part.as_str() {
        "names" => disco::from_env().and_then(names),
        "sum" => disco::from_env().and_then(sums),
        "sums of two sessions" => [(); 2].into_iter().try_for_each(|()| disco::from_env().and_then(sums)),
        "processes" => Builder::processes(2).start().and_then(names),
        "no session" => Ok(()),
        "wait" => {
            println!("waits");
            disco_conformance::waiting::hang()
        }
        "die" => disco::from_env().and_then(|session| call(&session, "tests.die")),
        "lose task 0" => disco::from_env().and_then(|session| call(&session, "tests.lose_worker_0")),
        "replace worker 0" => disco::from_env().and_then(|session| replace(session, "tests.lose_worker_0")),
        "replace the last" => disco::from_env().and_then(|session| replace(session, "tests.die")),
        "resize" => disco::from_env().and_then(resize),
        "kill the controller" => disco::from_env().and_then(kill_the_controller),
        "drop" => disco::from_env().and_then(|session| call(&session, "tests.name")),
        "fail" => disco::from_env().and_then(|session| call(&session, "tests.fail")),
        "panic" => disco::from_env().map(|_session| panic!("on purpose")),
        other => Err(disco::Error::invalid(format!("no part {other}"))),
    };
    Some(match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Calls a function; the session ends without a shutdown.
fn call(session: &LaneSession, function: &str) -> disco::Result<()> {
    block_on(async {
        session.call(function, ()).await?;
        session.sync_all().await
    })
}

/// Calls a function that ends a worker, prints the loss, replaces the worker, and has all workers exchange tensors.
fn replace(session: LaneSession, function: &str) -> disco::Result<()> {
    if let Err(error) = call(&session, function) {
        println!("{error}");
    }
    let replaced = block_on(session.replace_lost())?.workers;
    println!("new: {replaced:?}");
    sums(session)
}

/// Loses worker 0, goes on without it, and then asks for one worker more.
fn resize(session: LaneSession) -> disco::Result<()> {
    if let Err(error) = call(&session, "tests.lose_worker_0") {
        println!("{error}");
    }
    let left = session.world().size() - 1;
    block_on(async {
        session.resize(left).await?;
        if let Err(error) = session.resize(left + 1).await {
            println!("{error}");
        }
        Ok::<_, disco::Error>(())
    })?;
    names(session)
}

/// Prints the processes of the workers, and kills this one.
fn kill_the_controller(session: LaneSession) -> disco::Result<()> {
    let processes = block_on(async {
        let processes = session.call("tests.process", ()).await?;
        session.get_all::<i64>(&processes).await
    });
    println!("{:?}", processes?);
    kill_process(getpid(), Signal::KILL).map_err(|error| disco::Error::invalid(error.to_string()))
}

fn names(session: LaneSession) -> disco::Result<()> {
    block_on(async {
        let names = session.call("tests.name", ()).await?;
        session.get_all::<String>(&names).await?.iter().for_each(|name| println!("{name}"));
        session.shutdown().await
    })
}

fn sums(session: LaneSession) -> disco::Result<()> {
    block_on(async {
        session.init_ccl("local", &[]).await?;
        let sums = session.call("launchers.sum", ()).await?;
        println!("{:?}", session.get_all::<f32>(&sums).await?);
        session.shutdown().await
    })
}
