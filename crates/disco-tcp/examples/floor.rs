//! All-reduces over `tcp` beside their floor, bare TCP between the same threads over the loopback, in one run:
//! `cargo run --release --package disco-tcp --example floor`, also with `DISCO_ENCRYPT=0`.
//!
//! Small tensors: in round trips of 64 bytes. Large ones: the time in which two connections carry as many bytes in both
//! directions as an all-reduce of two ranks sends. Both sides wait in the system, as `tcp` does.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::device_api::{DeviceApi as _, Host};
use disco_core::link::{Link, Shared};
use disco_core::{
    Backend as _, CommunicatorExt as _, ConnectParams, DType, Device, Rank, Reduction, Rendezvous, Tensor, World,
};
use disco_tcp::{BACKEND, Communicator};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SIZES: [usize; 3] = [1 << 20, 16 << 20, 64 << 20];
const ROUNDS: usize = 5;

/// The least of the times that `run` takes for one of `count` repetitions, after a first one.
fn least(count: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..count).try_for_each(|_| run())?;
        times.push(start.elapsed() / count as u32);
    }
    Ok(times.into_iter().min().unwrap_or_default())
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| "a thread panicked")?
}

/// Two ends of a connection.
fn pair() -> Result<[TcpStream; 2]> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let ends = [TcpStream::connect(listener.local_addr()?)?, listener.accept()?.0];
    ends.iter().try_for_each(|end| end.set_nodelay(true))?;
    Ok(ends)
}

/// The time in which 64 bytes go to another thread and come back.
fn round_trip() -> Result<Duration> {
    let [mut here, mut there] = pair()?;
    let echo = thread::spawn(move || {
        let mut bytes = [0; 64];
        while there.read_exact(&mut bytes).is_ok() && there.write_all(&bytes).is_ok() {}
    });
    let mut bytes = [0; 64];
    let time = least(2000, || {
        here.write_all(&bytes)?;
        Ok(here.read_exact(&mut bytes)?)
    })?;
    drop(here);
    echo.join().map_err(|_| "the other thread panicked")?;
    Ok(time)
}

/// The time in which two threads send each other `bytes` bytes.
fn both_ways(bytes: usize) -> Result<Duration> {
    let ends = pair()?;
    let side = |end: &TcpStream| -> Result<Duration> {
        let (sent, mut received) = (vec![1; bytes], vec![0; bytes]);
        least(1, || {
            thread::scope(|scope| {
                let sender = scope.spawn(|| Ok((&*end).write_all(&sent)?));
                (&*end).read_exact(&mut received)?;
                joined(sender)
            })
        })
    };
    thread::scope(|scope| {
        let sides = ends.each_ref().map(|end| scope.spawn(move || side(end)));
        sides.into_iter().map(joined).try_fold(Duration::ZERO, |most, time| Ok(most.max(time?)))
    })
}

/// The time of an all-reduce of each of these numbers of bytes, over this number of ranks.
fn all_reduces(ranks: usize, sizes: &[usize]) -> Result<Vec<Duration>> {
    let world = World::new(ranks, 1)?;
    let (at, link) = (BACKEND.rendezvous(&world)?, Arc::new(Link::bare(Arc::new(Shared::default()))));
    let rank = |rank: usize, at: &Rendezvous, link: Arc<Link>| -> Result<Vec<Duration>> {
        let mut queue = Host.bind(Device::CPU)?;
        let mut comm = Communicator::connect(ConnectParams::new(Rank::new(rank as u32), world, &mut *queue, link), at)?;
        let time = |bytes: &usize| {
            let sum = Tensor::zeros(DType::F32, [bytes / 4])?;
            let count = ((64 << 10) / bytes).clamp(1, 2000);
            least(count, || Ok(comm.all_reduce_in_place(&sum, Reduction::Sum)?))
        };
        sizes.iter().map(time).collect()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|number| {
                let (rank, at, link) = (&rank, &at, link.clone());
                scope.spawn(move || rank(number, at, link))
            })
            .collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })
    .map(|all| (0..sizes.len()).map(|size| all.iter().map(|times| times[size]).max().unwrap_or_default()).collect())
}

fn main() -> Result<()> {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let round_trip = round_trip()?;
    println!("round trip of 64 bytes: {:.1} us", micros(round_trip));
    for ranks in [2, 4] {
        let time = all_reduces(ranks, &[8])?[0];
        let ratio = micros(time) / micros(round_trip);
        println!("all_reduce of 8 bytes, {ranks} ranks: {:.1} us, {ratio:.2} round trips", micros(time));
    }
    let times = all_reduces(2, &SIZES)?;
    for (bytes, time) in SIZES.into_iter().zip(times) {
        // Each rank sends a half and a result of a half.
        let floor = both_ways(bytes)?;
        let share = micros(floor) / micros(time);
        println!(
            "{} MiB, 2 ranks: TCP {:.0} us, all_reduce {:.0} us, {share:.2}",
            bytes >> 20,
            micros(floor),
            micros(time)
        );
    }
    Ok(())
}
