//! Who is let in, and who is not.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use disco::{Session, Token, block_on};
use disco_channel::handshake::{ANSWER, GREETING, Guest, Request, VERDICT};
use disco_core::wire::{Join, Message};

use crate::link::Proxy;
use crate::programs::{OTHER, PATIENCE, TOKEN, ask, builder, complaint, end, node, with};

crate::tests!(
    a_wrong_token_is_refused_on_both_ends,
    a_replayed_handshake_is_refused,
    a_reflected_handshake_is_refused,
    an_answer_of_another_version_is_refused,
    garbage_is_refused,
    garbage_shorter_than_an_answer_is_refused_at_once,
    a_peer_that_claims_2_to_the_60_bytes_is_refused,
    a_node_of_another_program_is_refused_and_the_start_goes_on,
    the_same_node_does_not_join_twice,
    a_node_that_there_is_not_is_refused,
    a_thousand_strangers_keep_no_node_out,
);

/// A stranger that has connected.
struct Stranger(TcpStream);

impl Stranger {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends an answer, and returns the verdict's status.
    fn answer(&mut self, answer: &[u8]) -> u32 {
        self.0.write_all(answer).unwrap();
        u32::from_le_bytes(self.read::<VERDICT>()[..4].try_into().unwrap())
    }

    /// Proves that it has the token.
    fn enter(address: SocketAddr, token: &str, request: Request) -> Self {
        let mut stranger = Self::connect(address);
        let (greeting, token) = (stranger.read::<GREETING>(), Token::new(token).unwrap());
        let (guest, answer) = Guest::answer(&token, &greeting, [7; 32], request).unwrap();
        stranger.0.write_all(&answer).unwrap();
        guest.judge(&token, &stranger.read::<VERDICT>()).unwrap();
        stranger
    }

    /// Says something else than join, or more, and returns why it is refused.
    fn say(&mut self, bytes: &[u8]) -> String {
        self.0.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // What it did not read resets the connection, perhaps.
        _ = self.0.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Whether the other end has closed, in time.
    fn is_sent_away(&mut self) -> bool {
        loop {
            match self.0.read(&mut [0; 256]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Does something at the door of a session, lets a good node in after it, and returns what was done and what became of
/// the session's start.
fn at_the_door<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> T {
    let (session, (node, done)) = with(builder(2, 1), |address| {
        let done = act(address);
        (node(address).spawn().unwrap(), done)
    });
    let session = session.unwrap();
    ask(&session, "tests.pid", 1);
    block_on(session.shutdown()).unwrap();
    assert!(end(node).status.success());
    done
}

/// The error of a session that only this comes to.
fn refused_alone<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> (String, T) {
    let (session, done) = with(builder(2, 1).start_deadline(Duration::from_secs(1)), act);
    (session.unwrap_err().to_string(), done)
}

fn a_wrong_token_is_refused_on_both_ends() {
    let wrong = |address| node(address).env("DISCO_TOKEN", OTHER).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
    let told = at_the_door(|address| complaint(wrong(address)));
    let last = told.lines().next_back().unwrap();
    assert!(
        last.starts_with("disco: joining the controller at ") && last.ends_with(": it has another token"),
        "{told}"
    );
    let (error, node) = refused_alone(wrong);
    assert!(error.starts_with("start: no end after 1s: node 1 did not join; sent away: 127.0.0.1:"), "{error}");
    assert!(error.ends_with(": its token is another"), "{error}");
    complaint(node);
}

fn a_replayed_handshake_is_refused() {
    // A node joins through somebody who listens; the session is over then.
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (session, node) = with(builder(2, 1), |address| {
        let proxy = Proxy::start(address).recording(heard.clone());
        node(proxy.address()).spawn().unwrap()
    });
    block_on(session.unwrap().shutdown()).unwrap();
    assert!(end(node).status.success());
    let answer = heard.lock().unwrap()[..ANSWER].to_vec();
    let status = at_the_door(|address| {
        let mut stranger = Stranger::connect(address);
        stranger.read::<GREETING>();
        let status = stranger.answer(&answer);
        assert!(stranger.is_sent_away());
        status
    });
    assert_eq!(status, 1, "wrong token");
}

fn a_reflected_handshake_is_refused() {
    let status = at_the_door(|address| {
        let mut stranger = Stranger::connect(address);
        let mut reflected = stranger.read::<GREETING>().to_vec();
        reflected.resize(ANSWER, 0);
        stranger.answer(&reflected)
    });
    assert_eq!(status, 1, "wrong token");
    // The words of another of its connections are not a proof either.
    let status = at_the_door(|address| {
        let [mut one, mut other] = [Stranger::connect(address), Stranger::connect(address)];
        let (greeting, theirs) = (one.read::<GREETING>(), other.read::<GREETING>());
        let (_, mut answer) =
            Guest::answer(&Token::new(OTHER).unwrap(), &greeting, [0; 32], Request::default()).unwrap();
        answer[ANSWER - 32..].copy_from_slice(&theirs[GREETING - 32..]);
        one.answer(&answer)
    });
    assert_eq!(status, 1, "wrong token");
}

fn an_answer_of_another_version_is_refused() {
    let old = |address| {
        let mut stranger = Stranger::connect(address);
        let greeting = stranger.read::<GREETING>();
        let (_, mut answer) =
            Guest::answer(&Token::new(TOKEN).unwrap(), &greeting, [0; 32], Request::default()).unwrap();
        answer[8] = 99;
        stranger.answer(&answer)
    };
    assert_eq!(at_the_door(old), 2, "wrong version");
    let (error, _) = refused_alone(old);
    let why = ": the other end speaks version 99, this one 5: both must run the same program";
    assert!(error.ends_with(why), "{error}");
}

fn garbage_is_refused() {
    let garbage = |address| {
        let mut stranger = Stranger::connect(address);
        stranger.read::<GREETING>();
        stranger.say(b"GET / HTTP/1.1\r\nHost: this is as long as an answer must be for somebody to look at it\r\n\r\n")
    };
    assert_eq!(at_the_door(garbage), "");
    let (error, _) = refused_alone(garbage);
    assert!(error.ends_with(": it speaks another language"), "{error}");
    let nonsense = |address| {
        let mut stranger = Stranger::enter(address, TOKEN, Request::default());
        stranger.say(b"\x08\0\0\0\0\0\0\0nonsense nonsense")
    };
    let (error, _) = refused_alone(nonsense);
    assert!(error.contains("sent away: 127.0.0.1:") && error.contains(": bad packet: "), "{error}");
    let ready = |address| {
        let mut stranger = Stranger::enter(address, TOKEN, Request::default());
        stranger.say(&Message::Ready.encode().unwrap())
    };
    let (error, _) = refused_alone(ready);
    assert!(error.ends_with(": it says Ready instead of join"), "{error}");
}

fn garbage_shorter_than_an_answer_is_refused_at_once() {
    let start = Instant::now();
    let said = at_the_door(|address| {
        let mut stranger = Stranger::connect(address);
        stranger.read::<GREETING>();
        stranger.say(b"GET /\n")
    });
    assert_eq!(said, "");
    assert!(start.elapsed() < Duration::from_secs(4), "after {:?}", start.elapsed());
}

fn a_peer_that_claims_2_to_the_60_bytes_is_refused() {
    let huge = |address| Stranger::enter(address, TOKEN, Request::default()).say(&(1u64 << 60).to_le_bytes());
    at_the_door(huge);
    let (error, _) = refused_alone(huge);
    assert!(
        error.ends_with(": bad packet: a packet of 1152921504606846976 bytes; the limit is 68719476736"),
        "{error}"
    );
    // Or by pieces.
    let part = Message::Part { left: 1 << 60, bytes: [0; 10].into() }.encode().unwrap();
    let (error, _) = refused_alone(|address| Stranger::enter(address, TOKEN, Request::default()).say(&part));
    assert!(error.ends_with(": bad packet: a packet of 1152921504606846986 bytes; the limit is 1048584"), "{error}");
    // A node that has joined.
    let session = builder(2, 1);
    let (session, (mut stranger, _)) = with(session, |address| (joined(address, Request::default()), ()));
    drop(session);
    stranger.say(&part);
}

/// A stranger that has joined as a node, and is silent from then on.
fn waiting(address: SocketAddr, request: Request) -> Stranger {
    let mut stranger = Stranger::enter(address, TOKEN, request);
    let functions = disco_core::function::names().into_iter().map(str::to_owned).collect();
    let join = Message::Join(Join { name: "stranger".into(), functions });
    stranger.0.write_all(&join.encode().unwrap()).unwrap();
    stranger
}

/// One that has also said that it is ready.
fn joined(address: SocketAddr, request: Request) -> Stranger {
    let mut stranger = waiting(address, request);
    stranger.0.write_all(&Message::Ready.encode().unwrap()).unwrap();
    stranger
}

fn a_node_of_another_program_is_refused_and_the_start_goes_on() {
    let other = |address| {
        let mut stranger = Stranger::enter(address, TOKEN, Request::default());
        let mut functions: Vec<String> = disco_core::function::names().into_iter().map(str::to_owned).collect();
        functions.retain(|name| name != "tests.pid");
        functions.push("theirs.only".into());
        stranger.say(&Message::Join(Join { name: "stranger".into(), functions }).encode().unwrap())
    };
    let why = "it is another program: its worker functions differ; it lacks: tests.pid; only it has: theirs.only";
    let told = at_the_door(other);
    assert!(told.contains(why), "{told}");
    let (error, told) = refused_alone(other);
    let start = "start: no end after 1s: node 1 did not join; sent away: stranger at 127.0.0.1:";
    assert!(error.starts_with(start) && error.ends_with(&format!(": {why}")), "{error}");
    assert!(told.contains(why), "{told}");
}

fn the_same_node_does_not_join_twice() {
    let session = builder(3, 1);
    let (session, (nodes, told)) = with(session, |address| {
        let spawn = |id: &str| node(address).env("DISCO_NODE_ID", id).spawn().unwrap();
        let first = spawn("1");
        thread::sleep(Duration::from_millis(300));
        let told = complaint(spawn("1"));
        ([first, spawn("2")], told)
    });
    let session = session.unwrap();
    assert!(told.starts_with("disco: the controller lost: it refuses this node: node 1 is here already: "), "{told}");
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(nodes[0].id()));
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

fn a_node_that_there_is_not_is_refused() {
    let told = at_the_door(|address| complaint(node(address).env("DISCO_NODE_ID", "7").spawn().unwrap()));
    assert_eq!(told, "disco: the controller lost: it refuses this node: nodes here are 1 to 1, and it is 7\n");
}

fn a_thousand_strangers_keep_no_node_out() {
    let strangers = at_the_door(|address| -> Vec<Stranger> {
        (0..1000)
            .map(|number| {
                let mut stranger = Stranger(TcpStream::connect(address).unwrap());
                if number % 2 == 0 {
                    // Gone already, perhaps.
                    _ = stranger.0.write_all(b"discnode");
                }
                stranger
            })
            .collect()
    });
    assert_eq!(strangers.len(), 1000);
}
