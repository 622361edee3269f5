//! Measurements of `nccl` and `cuda_p2p` on one GPU: several ranks share the device, each a thread with a stream of its
//! own.
//!
//! ```text
//! gpu_evidence graph|copies|replays|times RANKS …
//! ```
//!
//! Each result is a line: number of ranks, name, bytes, microseconds of the slowest rank. If the driver lacks a
//! function that a measurement needs, the line begins with `skipped:`. `GPU_EVIDENCE_QUICK=1` shrinks sizes and counts
//! for a rehearsal on the test double. `testing/scripts/gpu-evidence.sh` runs all of them.

mod driver;
mod kernels;
mod memory;
mod ranks;
mod replays;
mod times;

/// Functions of the driver that graphs need.
const GRAPHS: &[&str] = &["cuStreamBeginCapture_v2", "cuGraphInstantiateWithFlags"];

fn main() -> ranks::Result<()> {
    disco::init();
    let mut args = std::env::args().skip(1);
    let what = args.next().ok_or("the first argument must name a measurement")?;
    let (work, needed): (ranks::Work, &[&str]) = match what.as_str() {
        "graph" => (kernels::graph, GRAPHS),
        "copies" => (memory::copies, &[]),
        "replays" => (replays::replays, GRAPHS),
        "times" => (times::times, &["cuEventElapsedTime"]),
        other => return Err(format!("there is no measurement `{other}`").into()),
    };
    println!("ranks\twhat\tbytes\tmicroseconds");
    if let Some(function) = driver::missing(needed)? {
        println!("skipped: {what}: this driver has no {function}");
        return Ok(());
    }
    for size in args {
        let size = size.parse().map_err(|error| format!("`{size}` is not a number of ranks: {error}"))?;
        for ranks::Row { name, seconds } in work(size)? {
            println!("{size}\t{name}\t{:.3}", seconds * 1e6);
        }
    }
    Ok(())
}
