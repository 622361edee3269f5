//! The command that starts ranks, where the library needs one.

use std::ffi::OsString;
use std::path::Path;

use disco_core::Result;

use crate::library::Mpi;

/// What goes before a program and its arguments to start it as so many ranks of this machine; nothing where sessions of
/// processes start their ranks without a launcher, as with MPICH and Intel MPI.
///
/// It is the `mpirun` beside the library, or the one that the shell finds. Root is let in, and more ranks than processors.
///
/// # Errors
/// There is no MPI.
pub fn launcher(ranks: usize) -> Result<Vec<OsString>> {
    let about = Mpi::get()?.about();
    if about.speaks_pmi() {
        return Ok(Vec::new());
    }
    let beside = Path::new(about.library()).parent().and_then(Path::parent).map(|folder| folder.join("bin/mpirun"));
    let program = beside.filter(|path| path.is_file()).map_or_else(|| "mpirun".into(), Into::into);
    let mut command: Vec<OsString> = vec![program, "-n".into(), ranks.to_string().into()];
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if ranks > processors {
        command.push("--oversubscribe".into());
    }
    if rustix::process::geteuid().is_root() {
        command.push("--allow-run-as-root".into());
    }
    Ok(command)
}
