//! The functions that the C program `host.c` calls: a sum over a communicator of the program, and a session on the
//! program's ranks.

#![allow(unsafe_code, reason = "C")]

use std::ffi::c_int;
use std::time::Duration;

use disco::{Builder, CommunicatorExt as _, Reduction, Result, Tensor, WorkerContext, WorkerId, block_on};

disco::register_function!("c_host.sum_of_ranks", sum_of_ranks);

/// Sums `count` elements in place over the ranks of a communicator, given as `(uintptr_t) comm`. All ranks of the
/// communicator call this function. Returns 0, or 1 after printing the error.
///
/// # Safety
/// `comm` is a communicator of the MPI library of this process; `data` has `count` elements, which no other code
/// accesses meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn disco_all_reduce(comm: usize, data: *mut f32, count: usize) -> c_int {
    // SAFETY: the caller promises that `data` has `count` elements and is not used elsewhere.
    let elements = unsafe { std::slice::from_raw_parts_mut(data, count) };
    let mut sum = || {
        // SAFETY: the caller promises that `comm` is a communicator of this process's MPI.
        let mut comm = unsafe { disco::mpi::connect_comm(comm, Duration::from_secs(30)) }?;
        let tensor = Tensor::from_slice(elements, [count as i64])?;
        comm.all_reduce_in_place(&tensor, Reduction::Sum)?;
        elements.copy_from_slice(&tensor.view::<f32>()?);
        Ok(())
    };
    status(sum())
}

/// Makes the other ranks workers of Disco. Returns only on rank 0.
#[unsafe(no_mangle)]
pub extern "C" fn disco_init() {
    disco::init();
}

/// Computes the sum of all rank numbers in a session of `workers` workers, and prints it. Returns 0, or 1 after
/// printing the error.
#[unsafe(no_mangle)]
pub extern "C" fn disco_session(workers: usize) -> c_int {
    let session = || {
        let session = Builder::processes(workers).start()?;
        block_on(async {
            session.init_ccl("mpi", &[]).await?;
            let function = session.function("c_host.sum_of_ranks").await?;
            let sums = session.call(&function, ()).await?;
            let sum: i64 = session.get(&sums, WorkerId::new(workers as u32 - 1)).await?;
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
