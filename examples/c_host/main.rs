//! What a C program that has its own MPI gets from Disco: sums over its own communicator, and a session on its own ranks.
//! The program is `host.c` beside this file.

#![allow(unsafe_code, reason = "C")]

use std::ffi::c_int;
use std::time::Duration;

use disco::{
    Builder, CommunicatorExt as _, DataPlane, Reduction, Result, Session, SessionExt, Tensor, WorkerContext, WorkerId,
    block_on,
};

disco::register_function!("c_host.sum_of_ranks", sum_of_ranks);

/// Sums `count` elements over the ranks of a communicator, given as `(uintptr_t) comm`. All of them call this. Returns 0, or 1
/// and says why.
///
/// # Safety
/// The communicator is one of this process's MPI; `data` has so many elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn disco_all_reduce(comm: usize, data: *mut f32, count: usize) -> c_int {
    // SAFETY: as the caller promises.
    let elements = unsafe { std::slice::from_raw_parts_mut(data, count) };
    let mut sum = || {
        // SAFETY: as the caller promises.
        let mut comm = unsafe { disco::mpi::connect_comm(comm, Duration::from_secs(30)) }?;
        let tensor = Tensor::from_slice(elements, [count as i64])?;
        comm.all_reduce_in_place(&tensor, Reduction::Sum)?;
        elements.copy_from_slice(&tensor.view::<f32>()?);
        Ok(())
    };
    status(sum())
}

/// Takes the ranks into Disco's service: returns on rank 0 alone.
#[unsafe(no_mangle)]
pub extern "C" fn disco_init() {
    disco::init();
}

/// Prints the sum of the ranks' numbers as a session of `workers` workers finds it. Returns 0, or 1 and says why.
#[unsafe(no_mangle)]
pub extern "C" fn disco_session(workers: usize) -> c_int {
    let session = || {
        let session = Builder::processes(workers).start()?;
        block_on(async {
            session.init_ccl("mpi", &[]).await?;
            let function = session.function("c_host.sum_of_ranks").await?;
            let sums = session.call(&function, ()).await?;
            let sum: i64 = session.get_as(&sums, WorkerId::new(workers as u32 - 1)).await?;
            println!("a session's sum of ranks: {sum}");
            session.shutdown().await
        })
    };
    status(session())
}

fn sum_of_ranks(ctx: &mut WorkerContext) -> Result<i64> {
    let rank = Tensor::from_slice(&[ctx.worker().index() as i64], [1])?;
    ctx.comm()?.all_reduce_in_place(&rank, Reduction::Sum)?;
    Ok(rank.to_vec::<i64>()?[0])
}

fn status(result: Result<()>) -> c_int {
    if let Err(error) = &result {
        eprintln!("disco: {error}");
    }
    result.is_err().into()
}
