//! Floors of nodes: two threads that exchange bytes over TCP with blocking reads.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Time of one round trip of 64 bytes over the loopback.
pub(crate) fn round_trip() -> Duration {
    const TRIPS: u32 = 500;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback");
    let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (mut far, _) = listener.accept().expect("it has connected");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("TCP");
    }
    let peer = thread::spawn(move || {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).is_ok() {
            far.write_all(&bytes).expect("it reads");
        }
    });
    let mut bytes = [0; 64];
    let start = Instant::now();
    for _ in 0..TRIPS {
        near.write_all(&bytes).expect("it reads");
        near.read_exact(&mut bytes).expect("it answers");
    }
    let time = start.elapsed() / TRIPS;
    drop(near);
    peer.join().expect("it does not panic");
    time
}

/// Time of one copy of `bytes` bytes over the loopback, from memory to memory.
pub(crate) fn copy(bytes: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback");
    let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
    let (mut far, _) = listener.accept().expect("it has connected");
    let (sent, mut came) = (vec![1; bytes], vec![1; bytes]);
    let peer = thread::spawn(move || {
        far.read_exact(&mut came).expect("all of it comes");
        far.write_all(&[0]).expect("it reads");
        came
    });
    let start = Instant::now();
    near.write_all(&sent).expect("it reads");
    near.read_exact(&mut [0]).expect("it answers");
    let time = start.elapsed();
    drop(peer.join().expect("it does not panic"));
    time
}
