//! Times that a simulated end needs, in nanoseconds.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use super::world::Nanos;
use crate::handshake::{ControllerHandshake, Keys, NodeHandshake, Request};
use crate::noise::{MAX_PLAIN_BYTES, Opener, Sealer};

/// Messages of one measurement.
const MESSAGES: u32 = 2000;
/// Bytes of a message: those of a command or a reply.
const MESSAGE_BYTES: usize = 200;

/// The costs of an end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    /// To send a message: encryption, and the system's call.
    pub(super) send: Nanos,
    /// To receive one: the system's call, and decryption.
    pub(super) receive: Nanos,
    /// To wake a thread that sleeps.
    pub(super) wake: Nanos,
    /// The time of the engines is measured and added.
    pub(super) are_measured: bool,
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    one.set_nodelay(true).unwrap();
    other.set_nodelay(true).unwrap();
    (one, other)
}

fn keys() -> (Keys, Keys) {
    let secret = super::super::terms::secret("a token to measure with");
    let world = disco_core::World::new(2, 1).unwrap();
    let host = ControllerHandshake::new([1; 32]);
    let (node, answer) = NodeHandshake::answer(&secret, host.greeting(), Request::default()).unwrap();
    let judgement = host.judge(&secret, &world, &answer);
    let theirs = node.judge(&judgement.verdict.unwrap()).unwrap().1.unwrap();
    (judgement.admitted.unwrap().1.unwrap(), theirs)
}

impl Costs {
    /// Measures the costs over encrypted connections of this machine.
    pub(super) fn measured() -> Self {
        let (mut one, mut other) = pair();
        other.set_nonblocking(true).unwrap();
        let (ours, theirs) = keys();
        let (mut sealer, mut opener) = (Sealer::new(ours), Opener::new(theirs));
        let (mut record, mut plain) = (Vec::new(), vec![0; MAX_PLAIN_BYTES]);
        let message = disco_core::wire::Message::Bye("x".repeat(MESSAGE_BYTES)).encode().unwrap();
        let (mut send, mut receive) = (Vec::new(), Vec::new());
        for _ in 0..MESSAGES {
            let start = Instant::now();
            sealer.seal([&message[..]].into_iter(), &mut record).unwrap();
            one.write_all(&record).unwrap();
            send.push(start.elapsed().as_nanos() as Nanos);
            let start = Instant::now();
            while opener.open(&mut plain).unwrap().is_none() {
                // Nothing has come yet if this fails.
                let _ = opener.fill(|buffer| other.read(buffer));
            }
            // A reactor reads until no bytes are left.
            opener.fill(|buffer| other.read(buffer)).unwrap_err();
            receive.push(start.elapsed().as_nanos() as Nanos);
        }
        let [send, receive] = [send, receive].map(median);
        Self { send, receive, wake: wake(), are_measured: true }
    }
}

/// Half of the time of a byte's round trip between two threads that sleep, without the calls.
fn wake() -> Nanos {
    let (mut one, mut other) = pair();
    thread::spawn(move || {
        let mut byte = [0];
        while other.read_exact(&mut byte).is_ok() && other.write_all(&byte).is_ok() {}
    });
    let mut trips = Vec::new();
    for _ in 0..MESSAGES / 4 {
        thread::sleep(std::time::Duration::from_micros(200));
        let start = Instant::now();
        one.write_all(&[0]).unwrap();
        one.read_exact(&mut [0]).unwrap();
        trips.push(start.elapsed().as_nanos() as Nanos / 2);
    }
    median(trips)
}

fn median(mut times: Vec<Nanos>) -> Nanos {
    times.sort_unstable();
    times[times.len() / 2]
}
