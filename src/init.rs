//! Programs that are their own workers.

use std::io::{self, Write as _};
use std::process;

use disco_channel::processes::Invitation;

use crate::role;

/// Serves as a worker or as a node if this process was started as one, and then ends it; else returns at once.
///
/// A session of processes starts its program once more for each worker. So a program that makes one calls this first thing
/// in `main`, before it reads arguments, prints or starts threads:
///
/// ```no_run
/// # #![allow(clippy::needless_doctest_main)]
/// use disco::{Builder, Session};
///
/// fn main() -> disco::Result<()> {
///     disco::init();
///     let session = Builder::processes(4).start()?;
///     // …
///     disco::block_on(session.shutdown())
/// }
/// ```
///
/// With `DISCO_CONNECT`, a program is a node of the session there, as `disco worker` makes it.
///
/// In a test of the standard harness, which has a `main` of its own, [`init_test!`](crate::init_test) stands for this.
///
/// The exit status of a worker or a node is 0 after a shutdown, and 1 when it ends for another reason, which it prints.
pub fn init() {
    serve();
    role::be_program();
    #[cfg(feature = "mpi")]
    crate::launched::enter();
}

/// Lets a test of the standard harness (`#[test]`) make sessions of processes and nodes. It is the first line of each such test:
///
/// ```
/// use disco::{Builder, Session, SessionExt, WorkerContext, block_on};
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
///         let processes = session.call_named("example.process", ()).await.unwrap();
///         let processes: Vec<i64> = session.get_all_as(&processes).await.unwrap();
///         assert_ne!(processes[0], processes[1]);
///         session.shutdown().await.unwrap();
///     });
/// }
/// ```
///
/// The line stands in the test itself: the name of the function around it is the name of the test.
///
/// A worker is the test program once more, which runs one test alone (`--exact NAME`): the first one of the process that has come
/// to this line. There the line serves as the worker, and ends the process; what stands before it runs in each worker, too. The
/// harness of a worker prints `running 1 test`, which comes with the other output of the worker. A test program without the standard
/// harness (`harness = false`) calls [`init`] in its `main`.
#[allow(clippy::test_attr_in_doctest, reason = "it is for tests")]
#[macro_export]
macro_rules! init_test {
    () => {{
        fn here() {}
        $crate::init_in_test(::std::any::type_name_of_val(&here));
    }};
}

/// [`init_test!`](crate::init_test) in a test, inside which there is a function of this path.
#[doc(hidden)]
pub fn init_in_test(path: &str) {
    serve();
    role::be_test(test_of(path).to_owned());
}

/// The name that the standard harness gives the test around a function of this path.
fn test_of(path: &str) -> &str {
    let (_, path) = path.split_once("::").unwrap_or(("", path));
    let mut test = path.rsplit_once("::").map_or(path, |(test, _)| test);
    while let Some(outer) = test.strip_suffix("::{{closure}}") {
        test = outer;
    }
    test
}

/// Serves if this process was started as a worker or as a node, and then ends it.
fn serve() {
    let served = if let Some(invitation) = Invitation::take() {
        invitation.and_then(|invitation| role::serve(&invitation))
    } else if let Some(options) = crate::node::options() {
        options.and_then(|options| crate::node::join(&options))
    } else {
        return;
    };
    if let Err(error) = &served {
        _ = writeln!(io::stderr(), "disco: {error}");
    }
    process::exit(i32::from(served.is_err()));
}

#[cfg(test)]
mod tests {
    use super::test_of;

    #[test]
    fn the_name_of_a_test_is_found_in_the_path_of_a_function_inside() {
        assert_eq!(test_of("program::sums::of_workers::here"), "sums::of_workers");
        assert_eq!(test_of("program::of_workers::{{closure}}::{{closure}}::here"), "of_workers");
    }
}
