//! Sessions of processes: start, values, output, and the errors after the loss of a worker.

mod at_once;
mod death;
mod forked;
mod functions;
mod invited;
mod life;
mod matching;
mod memory;
mod mpi;
mod nccl;
pub(crate) mod programs;
mod replace;
mod replies;
mod resize;
mod spares;
mod start;

use crate::modules::Module;
pub(crate) use crate::trials::tests;

pub(crate) fn module() -> Module {
    let tests = [
        at_once::tests(),
        death::tests(),
        forked::tests(),
        invited::tests(),
        life::tests(),
        matching::tests(),
        memory::tests(),
        replace::tests(),
        replies::tests(),
        resize::tests(),
        spares::tests(),
        start::tests(),
        mpi::tests(),
        nccl::tests(),
    ];
    // One test at a time, because tests count this process's children and descriptors.
    Module::new("processes", Some(1)).tests(tests.into_iter().flatten())
}

/// The text of an error without the table of the workers' operations, which may follow.
fn first_line(error: &disco::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
