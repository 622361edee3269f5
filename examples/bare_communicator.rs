//! Communicators without a session: four threads of this program sum a vector. `cargo run --example bare_communicator`

use std::thread;
use std::time::Duration;

use disco::{Communicator, CommunicatorExt, Reduction, Tensor};

fn main() -> disco::Result<()> {
    let ranks = disco_local::connect_threads(4, Duration::from_secs(10))?;
    let threads: Vec<_> = ranks.into_iter().map(|comm| thread::spawn(move || rank(comm))).collect();
    for (rank, thread) in threads.into_iter().enumerate() {
        let sum = thread.join().map_err(|_| disco::Error::Invalid(format!("rank {rank} panicked")))??;
        println!("rank {rank}: {sum:?}");
    }
    Ok(())
}

/// One rank: contributes a vector with its number, and returns the sum of all vectors.
fn rank(mut comm: impl Communicator) -> disco::Result<Vec<f32>> {
    let mine = comm.rank().index() as f32;
    let x = Tensor::from_slice(&[mine, 10.0 * mine], [2])?;
    comm.all_reduce_in_place(&x, Reduction::Sum)?;
    comm.barrier()?;
    x.to_vec()
}
