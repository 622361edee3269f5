//! The command that starts ranks, where the library needs one, and what a rank knows of it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread;

use disco_core::Result;

use crate::library::Mpi;

/// Variables by which launchers tell a process how many ranks there are. Slurm gives a number to batch scripts, too, but steps to
/// `srun` only.
const RANKS: [&str; 3] = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"];

/// How many ranks a launcher has started, this process among them; 1 where there was none.
pub(crate) fn ranks() -> usize {
    RANKS.into_iter().find_map(|name| env::var(name).ok()?.parse().ok()).unwrap_or(1)
}

/// How many of them are on this machine, as far as is known: else all.
pub(crate) fn ranks_here() -> usize {
    const HERE: [&str; 2] = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"];
    HERE.into_iter().find_map(|name| env::var(name).ok()?.parse().ok()).unwrap_or_else(ranks)
}

/// Whether a launcher has started this process as one of several.
pub fn is_launched() -> bool {
    ranks() > 1
}

/// Processors that the ranks of this machine have together: launchers bind each to its own.
pub(crate) fn processors() -> usize {
    let mine = || thread::available_parallelism().map_or(1, usize::from);
    // Those of a container, or of the machine.
    let lists = ["/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"];
    let all =
        || lists.into_iter().map(|list| count(&fs::read_to_string(list).unwrap_or_default())).find(|all| *all > 0);
    if is_launched() { all().unwrap_or_else(mine) } else { mine() }
}

/// How many a list of processors has, as in `0-3,8`.
fn count(list: &str) -> usize {
    let numbers = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.saturating_sub(first.parse().ok()?) + 1)
    };
    list.trim().split(',').filter_map(numbers).sum()
}

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
    // Rank 0 is the controller and a worker, which one processor would be too few for.
    command.extend(["--bind-to".into(), "none".into()]);
    if ranks > processors() {
        command.push("--oversubscribe".into());
    }
    if rustix::process::geteuid().is_root() {
        command.push("--allow-run-as-root".into());
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        assert_eq!(["0\n", "0-3", "0-3,8", "0,2,4-7\n"].map(count), [1, 4, 5, 6]);
        assert!(processors() > 0);
    }
}
