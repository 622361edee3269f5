//! The threads of candle's kernels.

use std::env;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread;

use disco::SessionKind;

use super::args::Args;

/// Number of threads of rayon, which candle reads for each matrix product.
const RAYON: &str = "RAYON_NUM_THREADS";
/// Number of threads of candle's own pool, which candle reads once.
const CANDLE: &str = "CANDLE_NUM_THREADS";

/// Number of threads of each worker.
pub(crate) fn per_worker(args: &Args) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    args.threads.unwrap_or(cores / usize::from(args.workers)).max(1)
}

/// Executes this program again with the numbers of threads in its environment, unless they are there.
///
/// candle has one pool of threads for quantised products in a process, which serves one caller at a time. With several
/// workers in a process each worker computes on its own thread instead.
///
/// # Errors
/// The program can't be executed.
pub(crate) fn execute_again_with_limits(args: &Args) -> io::Result<()> {
    if env::var_os(RAYON).is_some() || env::var_os(CANDLE).is_some() {
        return Ok(());
    }
    let threads = per_worker(args);
    let is_shared = args.kind() == SessionKind::Threads && args.workers > 1;
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(RAYON, threads.to_string());
    Err(again.env(CANDLE, if is_shared { 1 } else { threads }.to_string()).exec())
}
