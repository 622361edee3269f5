//! The handshake of nodes: which connections a controller accepts and rejects.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use disco::{Token, block_on};
use disco_core::wire::{Join, Message};
use disco_engine::handshake::{GREETING_BYTES, HANDSHAKE_TIMEOUT, NodeHandshake, Request, Secret, VERDICT_BYTES};
use disco_engine::noise::{MAX_PLAIN_BYTES, Opener, Sealer};

use super::programs::{
    HAS_JOINED, OTHER_TOKEN, TEST_TIMEOUT, TOKEN, ask, builder, complaint, end, node, read_until, with,
};

super::tests!(
    a_wrong_token_is_rejected_with_the_reason_on_both_ends,
    malformed_answers_and_packets_are_rejected,
    a_malformed_answer_is_rejected_before_it_is_complete,
    a_packet_that_claims_2_to_the_60_bytes_is_rejected,
    a_second_node_with_the_same_id_is_rejected,
    a_node_id_out_of_range_is_rejected,
    a_node_joins_among_a_thousand_silent_connections,
);

fn secret(token: &str) -> Secret {
    Secret { token: Token::new(token).unwrap(), encrypts: true }
}

/// A client that writes and reads the bytes of the handshake itself, and the keys after it.
struct RawClient(TcpStream, Option<(Sealer, Opener)>);

impl RawClient {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self(stream, None)
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Connects and completes the handshake with `token`.
    fn authenticate(address: SocketAddr, token: &str, request: Request) -> Self {
        let mut client = Self::connect(address);
        let greeting = client.read::<GREETING_BYTES>();
        let (guest, answer) = NodeHandshake::answer(&secret(token), &greeting, request).unwrap();
        client.0.write_all(&answer).unwrap();
        let (_, keys) = guest.judge(&client.read::<VERDICT_BYTES>()).unwrap();
        client.1 = keys.map(|keys| (Sealer::new(keys.clone()), Opener::new(keys)));
        client
    }

    /// Sends `bytes`, encrypted after the handshake.
    fn write(&mut self, bytes: &[u8]) {
        let Some((sealer, _)) = &mut self.1 else { return self.0.write_all(bytes).unwrap() };
        for bytes in bytes.chunks(MAX_PLAIN_BYTES) {
            let mut record = Vec::new();
            sealer.seal([bytes].into_iter(), &mut record).unwrap();
            self.0.write_all(&record).unwrap();
        }
    }

    /// Sends `bytes` and returns all that the controller sends until it closes the connection.
    fn send(&mut self, bytes: &[u8]) -> String {
        self.write(bytes);
        let mut answer = Vec::new();
        // Fails if the controller closed the connection with unread bytes.
        _ = self.0.read_to_end(&mut answer);
        if let Some((_, opener)) = &mut self.1 {
            let (sealed, mut plain) = (std::mem::take(&mut answer), vec![0; MAX_PLAIN_BYTES]);
            let fill = |into: &mut [u8]| {
                into[..sealed.len()].copy_from_slice(&sealed);
                Ok::<_, ()>(sealed.len())
            };
            opener.fill(fill).unwrap();
            while let Some(opened) = opener.open(&mut plain).unwrap() {
                answer.extend_from_slice(&plain[..opened]);
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Runs `act` against a session that waits for a node. Then a valid node joins, and the session works. Returns the
/// result of `act`.
fn then_a_node_joins<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> T {
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

/// Runs `act` against a session that waits for a node, and no valid node joins. Returns the start error and the result
/// of `act`.
fn start_error<T: Send>(act: impl FnOnce(SocketAddr) -> T + Send) -> (String, T) {
    let (session, done) = with(builder(2, 1).start_deadline(Duration::from_secs(1)), act);
    (session.unwrap_err().to_string(), done)
}

fn a_wrong_token_is_rejected_with_the_reason_on_both_ends() {
    let wrong = |address| node(address).env("DISCO_TOKEN", OTHER_TOKEN).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
    let told = then_a_node_joins(|address| complaint(wrong(address)));
    let last = told.lines().next_back().unwrap();
    assert!(
        last.starts_with("disco: joining the controller at ") && last.ends_with(": the controller has another token"),
        "{told}"
    );
    let (error, node) = start_error(wrong);
    assert!(error.starts_with("start: no end after 1s: node 1 did not join; refused: 127.0.0.1:"), "{error}");
    assert!(error.ends_with(": its token does not match"), "{error}");
    complaint(node);
}

fn malformed_answers_and_packets_are_rejected() {
    let garbage = |address| {
        let mut client = RawClient::connect(address);
        client.read::<GREETING_BYTES>();
        client.send(b"GET / HTTP/1.1\r\nHost: this is as long as an answer must be for somebody to look at it\r\n\r\n")
    };
    assert_eq!(then_a_node_joins(garbage), "");
    let (error, _) = start_error(garbage);
    assert!(error.ends_with(": it does not speak the Disco protocol"), "{error}");
    let nonsense = |address| {
        let mut client = RawClient::authenticate(address, TOKEN, Request::default());
        client.send(b"\x08\0\0\0\0\0\0\0nonsense nonsense")
    };
    let (error, _) = start_error(nonsense);
    assert!(error.contains("refused: 127.0.0.1:") && error.contains(": bad packet: "), "{error}");
    let ready = |address| {
        let mut client = RawClient::authenticate(address, TOKEN, Request::default());
        client.send(&Message::Ready.encode().unwrap())
    };
    let (error, _) = start_error(ready);
    assert!(error.ends_with(": it sent Ready instead of JOIN"), "{error}");
}

fn a_malformed_answer_is_rejected_before_it_is_complete() {
    let (said, after) = then_a_node_joins(|address| {
        let mut client = RawClient::connect(address);
        client.read::<GREETING_BYTES>();
        let start = Instant::now();
        (client.send(b"GET /\n"), start.elapsed())
    });
    assert_eq!(said, "");
    // A handshake that is not complete ends after this time.
    assert!(after < HANDSHAKE_TIMEOUT, "after {after:?}");
}

fn a_packet_that_claims_2_to_the_60_bytes_is_rejected() {
    let huge = |address| RawClient::authenticate(address, TOKEN, Request::default()).send(&(1u64 << 60).to_le_bytes());
    then_a_node_joins(huge);
    let (error, _) = start_error(huge);
    assert!(
        error.ends_with(": bad packet: a packet of 1152921504606846976 bytes; the limit is 68719476736"),
        "{error}"
    );
    // A claim in a message of several parts.
    let part = Message::Part { left: 1 << 60, bytes: [0; 10].into() }.encode().unwrap();
    let (error, _) = start_error(|address| RawClient::authenticate(address, TOKEN, Request::default()).send(&part));
    assert!(error.ends_with(": bad packet: a packet of 1152921504606846986 bytes; the limit is 1048584"), "{error}");
    // A claim by a node that has joined.
    let session = builder(2, 1).silence(Duration::from_secs(1));
    let (session, (mut client, _)) = with(session, |address| (joined(address, Request::default()), ()));
    drop(session);
    client.send(&part);
}

/// A client that joins as a node, and then sends nothing.
fn waiting(address: SocketAddr, request: Request) -> RawClient {
    let mut client = RawClient::authenticate(address, TOKEN, request);
    let functions = disco_core::function::names().into_iter().map(str::to_owned).collect();
    let join = Message::Join(Join { name: "client".into(), rack: String::new(), is_spare: false, functions });
    client.write(&join.encode().unwrap());
    client
}

/// A client that joins as a node and reports that it is ready.
fn joined(address: SocketAddr, request: Request) -> RawClient {
    let mut client = waiting(address, request);
    client.write(&Message::Ready.encode().unwrap());
    client
}

fn a_second_node_with_the_same_id_is_rejected() {
    let session = builder(3, 1);
    let (session, (nodes, told)) = with(session, |address| {
        let spawn = |id: &str| node(address).env("DISCO_NODE_ID", id).spawn().unwrap();
        let mut first = spawn("1");
        read_until(&mut first, HAS_JOINED);
        let told = complaint(spawn("1"));
        ([first, spawn("2")], told)
    });
    let session = session.unwrap();
    assert!(
        told.starts_with("disco: the controller lost: it refuses this node: node 1 has joined already: "),
        "{told}"
    );
    assert_eq!(ask(&session, "tests.pid", 1), i64::from(nodes[0].id()));
    block_on(session.shutdown()).unwrap();
    nodes.into_iter().for_each(|node| assert!(end(node).status.success()));
}

fn a_node_id_out_of_range_is_rejected() {
    let told = then_a_node_joins(|address| complaint(node(address).env("DISCO_NODE_ID", "7").spawn().unwrap()));
    assert_eq!(
        told,
        "disco: the controller lost: it refuses this node: nodes of this session are 1 to 1, and it is 7\n"
    );
}

fn a_node_joins_among_a_thousand_silent_connections() {
    let clients = then_a_node_joins(|address| -> Vec<RawClient> {
        (0..1000)
            .map(|number| {
                let mut client = RawClient(TcpStream::connect(address).unwrap(), None);
                if number % 2 == 0 {
                    // Fails if the controller has already closed the connection.
                    _ = client.0.write_all(b"discnode");
                }
                client
            })
            .collect()
    });
    assert_eq!(clients.len(), 1000);
}
