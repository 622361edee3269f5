//! The launcher: the command that starts ranks, and the variables that it sets for them.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;

use disco_core::Result;
use disco_core::launcher::Place;

use crate::library::{About, Mpi};

/// The place of this process among the tasks of a launcher that can start MPI.
fn place() -> Option<Place> {
    Place::of_mpi_from_env().ok().flatten()
}

/// The number of ranks that a launcher has started, with this process; 1 without a launcher.
pub(crate) fn ranks() -> usize {
    place().and_then(|place| place.size).unwrap_or(1)
}

/// The number of these ranks on this machine, if the launcher has passed it; otherwise all.
pub(crate) fn ranks_here() -> usize {
    place().and_then(|place| place.local_size).unwrap_or_else(ranks)
}

/// Whether a launcher has started this process as one of several.
pub fn is_launched() -> bool {
    ranks() > 1
}

/// The number of processors of all ranks on this machine. A launcher binds each rank to its own processors.
pub(crate) fn processors() -> usize {
    let mine = || thread::available_parallelism().map_or(1, usize::from);
    // The processors of the container, or of the machine.
    let lists = ["/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"];
    let all =
        || lists.into_iter().map(|list| count(&fs::read_to_string(list).unwrap_or_default())).find(|all| *all > 0);
    if is_launched() { all().unwrap_or_else(mine) } else { mine() }
}

/// The number of processors in a list like `0-3,8`.
fn count(list: &str) -> usize {
    let numbers = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.saturating_sub(first.parse().ok()?) + 1)
    };
    list.trim().split(',').filter_map(numbers).sum()
}

/// The command that starts a program as `ranks` ranks of this machine; the program and its arguments follow it. Empty
/// for libraries that need no launcher (MPICH and Intel MPI).
///
/// The command is the `mpirun` in the library's installation, or else the one in `PATH`. It permits root, and more
/// ranks than processors.
///
/// # Errors
/// No MPI library was found.
pub fn launcher(ranks: usize) -> Result<Vec<OsString>> {
    let about = Mpi::get()?.about();
    if about.speaks_pmi() {
        return Ok(Vec::new());
    }
    let program = next_to(about, "mpirun").unwrap_or_else(|| "mpirun".into());
    let mut command: Vec<OsString> = vec![program, "-n".into(), ranks.to_string().into()];
    // Rank 0 runs the controller and a worker, for which one processor is too few, so ranks are not bound.
    command.extend(["--bind-to".into(), "none".into()]);
    if ranks > processors() {
        command.push("--oversubscribe".into());
    }
    if rustix::process::geteuid().is_root() {
        command.push("--allow-run-as-root".into());
    }
    Ok(command)
}

/// [`launcher`] for a program with several sessions, one after another: also for a library that needs no launcher, whose
/// processes serve one session only. Empty if such a library has none in its installation.
///
/// # Errors
/// No MPI library was found.
pub fn launcher_of_sessions(ranks: usize) -> Result<Vec<OsString>> {
    let about = Mpi::get()?.about();
    let without = || next_to(about, "mpiexec").map(|program| vec![program, "-n".into(), ranks.to_string().into()]);
    if about.speaks_pmi() { Ok(without().unwrap_or_default()) } else { launcher(ranks) }
}

/// A program in the library's installation.
fn next_to(about: &About, program: &str) -> Option<OsString> {
    let installation = Path::new(about.library()).parent().and_then(Path::parent)?;
    Some(installation.join("bin").join(program)).filter(|path| path.is_file()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_in_a_list_are_counted() {
        assert_eq!(["0\n", "0-3", "0-3,8", "0,2,4-7\n"].map(count), [1, 4, 5, 6]);
        assert!(processors() > 0);
    }
}
