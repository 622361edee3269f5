//! Entry points of programs that are executed again as workers or nodes.

#[cfg(feature = "mpi")]
mod launched;

use std::process;

use disco_channel::processes::Invitation;
use disco_core::Error;
use disco_core::launcher::Place;

#[cfg(feature = "mpi")]
pub use launched::restart_under_mpi;

use crate::remote::role;

/// Makes this process serve as a worker or a node, and then exits, if it was started as one; else returns at once.
///
/// A session of processes executes its program again for each worker. So a program that starts one calls this function
/// first in `main`, before it reads arguments, prints or starts threads:
///
/// ```no_run
/// # #![allow(clippy::needless_doctest_main)]
/// use disco::Builder;
///
/// fn main() -> disco::Result<()> {
///     disco::init();
///     let session = Builder::processes(4).start()?;
///     // …
///     disco::block_on(session.shutdown())
/// }
/// ```
///
/// With `DISCO_CONNECT` set, the process joins the session at that address as a node, like `disco worker`. If a launcher
/// (`srun`, `torchrun`, `mpiexec`, Kubernetes) has started this program as several tasks, task 0 returns, and the others
/// are workers of its sessions. The guide's chapter on launching lists the launchers.
///
/// With the feature `tvm` of `disco-runtime`, a process that TVM's Disco has started (`DISCO_WORKER`, `DISCO_TVM_CONNECT`)
/// serves as its worker or node, like `disco tvm-worker` and `disco tvm-node`.
///
/// In a test of the standard harness, which has its own `main`, use [`init_test!`](crate::init_test) instead.
///
/// SIGTERM stops a node, which tells its controller so; after a second one, the node does not wait for its workers.
///
/// The exit status of a worker or a node is 0 after a shutdown or a drop of the session; else it is 1, and the error is
/// printed: the controller is lost, or has panicked or failed and dropped the session without a shutdown.
pub fn init() {
    init_without_launcher();
    #[cfg(feature = "mpi")]
    if launched::become_rank() {
        return;
    }
    crate::remote::tasks::become_task();
}

/// Whether [`init`] serves, as far as the environment says; else it returns.
#[doc(hidden)]
pub fn serves() -> bool {
    let is_task = |place: Place| place.rank > 0 && place.size != Some(1) && !crate::remote::tasks::are_alone();
    let has_address = std::env::var_os(crate::remote::node::CONNECT).is_some();
    Invitation::is_there() || has_address || Place::from_env().is_ok_and(|place| place.is_some_and(is_task))
}

/// As [`init`], but leaves the role that a launcher gives this process.
#[doc(hidden)]
pub fn init_without_launcher() {
    serve();
    role::set_program();
}

/// Lets a test of the standard harness (`#[test]`) start sessions of processes and nodes. Write it as the first line of
/// each such test:
///
/// ```
/// use disco::{Builder, WorkerContext, block_on};
///
/// fn process(_: &mut WorkerContext) -> disco::Result<i64> {
///     Ok(std::process::id().into())
/// }
///
/// disco::register_function!("example.process", process);
///
/// #[test]
/// fn each_worker_has_a_process() {
///     disco::init_test!();
///     let session = Builder::processes(2).start().unwrap();
///     block_on(async {
///         let processes = session.call("example.process", ()).await.unwrap();
///         let processes: Vec<i64> = session.get_all(&processes).await.unwrap();
///         assert_ne!(processes[0], processes[1]);
///         session.shutdown().await.unwrap();
///     });
/// }
/// ```
///
/// The line must be in the test function itself, because it takes the name of the enclosing function as the name of the
/// test.
///
/// For each worker the test program is executed again with one test only (`--exact NAME`): the first test of this
/// process that reached this line. In the worker, the line serves as the worker and exits; code before it runs in each
/// worker, too. The output of a worker includes the harness's line `running 1 test`. A test program without the
/// standard harness (`harness = false`) calls [`init`] in its `main` instead.
#[allow(clippy::test_attr_in_doctest, reason = "it is for tests")]
#[macro_export]
macro_rules! init_test {
    () => {{
        fn here() {}
        $crate::internal::init_in_test(::std::any::type_name_of_val(&here));
    }};
}

/// Implements [`init_test!`](crate::init_test): `path` is the path of a function inside the test.
#[doc(hidden)]
pub fn init_in_test(path: &str) {
    serve();
    role::set_test(test_of(path).to_owned());
}

/// The standard harness's name of the test that contains the function `path`.
fn test_of(path: &str) -> &str {
    let (_, path) = path.split_once("::").unwrap_or(("", path));
    let mut test = path.rsplit_once("::").map_or(path, |(test, _)| test);
    while let Some(outer) = test.strip_suffix("::{{closure}}") {
        test = outer;
    }
    test
}

/// Serves and then exits if this process was started as a worker or a node.
fn serve() {
    crate::remote::signals::get_errors_of_large_files();
    #[cfg(feature = "trace")]
    crate::remote::dump::ignore_signal();
    let served = if let Some(served) = serve_tvm_if_asked() {
        served
    } else if let Some(invitation) = Invitation::take() {
        match invitation {
            // The session of a spare has ended.
            Err(Error::Closed(_)) => Ok(()),
            invitation => invitation.and_then(|invitation| role::serve(&invitation)),
        }
    } else if let Some(options) = crate::remote::node::options() {
        options.and_then(crate::remote::node::be_node)
    } else {
        return;
    };
    if let Err(error) = &served {
        disco_core::tell(format_args!("disco: {error}"));
    }
    process::exit(i32::from(served.is_err()));
}

#[cfg(feature = "tvm")]
use crate::remote::tvm::serve_if_asked as serve_tvm_if_asked;

/// Refuses to be a worker or a node of TVM. `None` if the environment asks for neither.
#[cfg(not(feature = "tvm"))]
fn serve_tvm_if_asked() -> Option<disco_core::Result<()>> {
    let is_worker = std::env::var("DISCO_WORKER").is_ok_and(|place| place.starts_with("tvm "));
    let is_asked = is_worker || std::env::var_os("DISCO_TVM_CONNECT").is_some();
    is_asked.then(|| {
        Err(Error::invalid(
            "this program was started as a worker of TVM's Disco, but it is built without the feature `tvm` of `disco-runtime`: \
             build it with that feature",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::test_of;

    #[test]
    fn test_of_drops_the_crate_closures_and_the_inner_function() {
        assert_eq!(test_of("program::sums::of_workers::here"), "sums::of_workers");
        assert_eq!(test_of("program::of_workers::{{closure}}::{{closure}}::here"), "of_workers");
    }
}
