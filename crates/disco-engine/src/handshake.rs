//! The handshake by which a node and its controller prove to each other that they have the same token, and agree on the
//! keys of their connection. Does no I/O.
//!
//! ```text
//! node                                                       controller
//!                 ◀── GREETING  magic, version, nonce                        44 bytes
//! ANSWER  magic, version, Noise message 1: e, psk (node, workers of a node, encrypted or not) ──▶    72 bytes
//!                 ◀── VERDICT   status, version, Noise message 2: e, ee (workers, groups, nodes)     68 bytes
//! ```
//!
//! Numbers are little endian. The two messages are those of the [Noise pattern NNpsk0](crate::noise), whose prologue is
//! the greeting and the head of the answer: only an end with the token can make and read them. A message proves the token
//! to the other end, can't be replayed on another connection, since it covers the controller's nonce or the node's
//! ephemeral key, and can't be reflected, since the two ends have different roles. All records have a fixed size. Before
//! the proof is checked, only magic and version are read. A refusal has zeros in place of its message and carries nothing
//! but its status.

use std::time::Duration;

use disco_core::env::Variable;
use disco_core::wire::VERSION;
use disco_core::{Error, Result, World};

pub use crate::noise::Keys;
use crate::noise::{self, HandshakeState, MESSAGE_OVERHEAD_BYTES};
use crate::token::Token;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = HEAD_BYTES + NONCE_BYTES;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = HEAD_BYTES + REQUEST_BYTES + MESSAGE_OVERHEAD_BYTES;
/// Bytes of a verdict.
pub const VERDICT_BYTES: usize = STATUS_BYTES + WORLD_BYTES + MESSAGE_OVERHEAD_BYTES;

/// Timeout for a connection's proof, and for its introduction (JOIN or HELLO).
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Heartbeat interval of a node that waits for other nodes to join.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The largest introduction, most of which is names of worker functions.
pub const MAX_INTRODUCTION_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"discnode";
const HEAD_BYTES: usize = 12;
const NONCE_BYTES: usize = 32;
/// Bytes of a node's request: its number, its number of workers, and whether the connection is encrypted.
const REQUEST_BYTES: usize = 12;
/// Bytes of a verdict before its message: status and version.
const STATUS_BYTES: usize = 8;
/// Bytes of the controller's world: numbers of workers, groups and nodes.
const WORLD_BYTES: usize = 12;

/// Stands for a number that the node leaves to the controller.
const UNSPECIFIED: u32 = u32::MAX;

/// The statuses of a verdict.
const WELCOME: u32 = 0;
const WRONG_TOKEN: u32 = 1;
const WRONG_VERSION: u32 = 2;
/// The controller encrypts, and the node does not.
const MUST_ENCRYPT: u32 = 3;
/// The node encrypts, and the controller does not.
const MUST_NOT_ENCRYPT: u32 = 4;

/// A nonce: 32 random bytes, used once.
pub type Nonce = [u8; NONCE_BYTES];

/// The place that a node asks for.
#[allow(clippy::exhaustive_structs, reason = "a part of the handshake: another field is another version")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The node's number; `None` lets the controller choose.
    pub node: Option<u32>,
    /// The number of workers that the node expects to have; `None` accepts any.
    pub per_node: Option<u32>,
}

/// An end's contribution to a handshake: the token, and whether it encrypts the connection after the handshake.
#[allow(clippy::exhaustive_structs, reason = "an end has to decide on both")]
#[derive(Clone, Debug)]
pub struct Secret {
    /// The session's token.
    pub token: Token,
    /// Whether the connection is encrypted. Both ends must agree.
    pub encrypts: bool,
}

impl Secret {
    /// A secret that encrypts connections if `encrypts` is true. Without `encrypts`, `DISCO_ENCRYPT` decides: `0` leaves
    /// connections in clear.
    ///
    /// # Errors
    /// The variable is neither 0 nor 1.
    pub fn new(token: Token, encrypts: Option<bool>) -> Result<Self> {
        let encrypts =
            encrypts.map_or_else(|| Variable::read("DISCO_ENCRYPT").flag(), |encrypts| Ok(Some(encrypts)))?;
        Ok(Self { token, encrypts: encrypts.unwrap_or(true) })
    }
}

/// The controller's side of one handshake.
#[derive(Debug)]
pub struct ControllerHandshake {
    greeting: [u8; GREETING_BYTES],
}

/// A node's side of one handshake.
#[derive(Debug)]
pub struct NodeHandshake {
    noise: HandshakeState,
    encrypts: bool,
}

/// The controller's decision on an answer.
#[non_exhaustive]
#[derive(Debug)]
pub struct Judgement {
    /// The place that the node asks for, and the keys of an encrypted connection; or why the node is refused.
    pub admitted: Result<(Request, Option<Keys>)>,
    /// The bytes to send; `None` if the other end does not speak the Disco protocol.
    pub verdict: Option<[u8; VERDICT_BYTES]>,
}

impl ControllerHandshake {
    /// Begins a handshake. `nonce` must be random and used once.
    pub fn new(nonce: Nonce) -> Self {
        let mut greeting = [0; GREETING_BYTES];
        greeting[..HEAD_BYTES].copy_from_slice(&head());
        greeting[HEAD_BYTES..].copy_from_slice(&nonce);
        Self { greeting }
    }

    /// The first bytes to send.
    pub fn greeting(&self) -> &[u8; GREETING_BYTES] {
        &self.greeting
    }

    /// Checks an answer, which has to prove knowledge of the token, and makes the verdict.
    pub fn judge(&self, secret: &Secret, world: &World, answer: &[u8; ANSWER_BYTES]) -> Judgement {
        match check_head(answer) {
            Head::Ours => {}
            Head::Version(theirs) => return Judgement::refusal(WRONG_VERSION, differ(theirs)),
            Head::Strange => {
                return Judgement {
                    admitted: Err(Error::protocol("it does not speak the Disco protocol")),
                    verdict: None,
                };
            }
        }
        let mut request = [0; REQUEST_BYTES];
        let read = noise::responder(&secret.token, &prologue(&self.greeting)).and_then(|mut noise| {
            let read = noise.read_message(&answer[HEAD_BYTES..], &mut request);
            read.map(|_| noise).map_err(|_| Error::refused("its token does not match"))
        });
        let noise = match read {
            Ok(noise) => noise,
            Err(error) => return Judgement { admitted: Err(error), verdict: Some(verdict(WRONG_TOKEN)) },
        };
        match (secret.encrypts, word(&request, 8) != 0) {
            (true, false) => Judgement::refusal(MUST_ENCRYPT, MUST_ENCRYPT_TEXT.into()),
            (false, true) => Judgement::refusal(MUST_NOT_ENCRYPT, MUST_NOT_ENCRYPT_TEXT.into()),
            _ => match welcome(noise, secret.encrypts, world) {
                Ok((verdict, keys)) => {
                    let number = |at: usize| Some(word(&request, at)).filter(|number| *number != UNSPECIFIED);
                    let request = Request { node: number(0), per_node: number(4) };
                    Judgement { admitted: Ok((request, keys)), verdict: Some(verdict) }
                }
                Err(error) => Judgement { admitted: Err(error), verdict: None },
            },
        }
    }
}

/// The verdict that admits a node, and the keys of an encrypted connection.
fn welcome(mut noise: HandshakeState, encrypts: bool, world: &World) -> Result<([u8; VERDICT_BYTES], Option<Keys>)> {
    let mut sizes = [0; WORLD_BYTES];
    for (at, number) in [(0, world.size()), (4, world.groups()), (8, world.nodes())] {
        sizes[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
    }
    let mut verdict = verdict(WELCOME);
    let written = noise.write_message(&sizes, &mut verdict[STATUS_BYTES..]);
    written.map_err(|error| Error::protocol(format!("the verdict can't be written: {error}")))?;
    Ok((verdict, keys(noise, encrypts)?))
}

fn keys(noise: HandshakeState, encrypts: bool) -> Result<Option<Keys>> {
    encrypts.then(|| Keys::of(noise)).transpose()
}

impl Judgement {
    fn refusal(status: u32, why: String) -> Self {
        Self { admitted: Err(Error::refused(why)), verdict: Some(verdict(status)) }
    }
}

impl NodeHandshake {
    /// Answers a greeting.
    ///
    /// # Errors
    /// The greeting is not Disco's, or of another protocol version; the system gives no random numbers.
    pub fn answer(
        secret: &Secret,
        greeting: &[u8; GREETING_BYTES],
        request: Request,
    ) -> Result<(Self, [u8; ANSWER_BYTES])> {
        match check_head(greeting) {
            Head::Ours => {}
            Head::Version(theirs) => return Err(Error::refused(differ(theirs))),
            Head::Strange => return Err(Error::protocol("the listener is not a Disco controller")),
        }
        let mut content = [0; REQUEST_BYTES];
        for (at, number) in [(0, request.node), (4, request.per_node)] {
            content[at..at + 4].copy_from_slice(&number.unwrap_or(UNSPECIFIED).to_le_bytes());
        }
        content[8] = secret.encrypts.into();
        let mut answer = [0; ANSWER_BYTES];
        answer[..HEAD_BYTES].copy_from_slice(&head());
        let mut noise = noise::initiator(&secret.token, &prologue(greeting))?;
        let written = noise.write_message(&content, &mut answer[HEAD_BYTES..]);
        written.map_err(|error| Error::protocol(format!("the answer can't be written: {error}")))?;
        Ok((Self { noise, encrypts: secret.encrypts }, answer))
    }

    /// Checks the verdict. Returns the controller's world, and the keys of an encrypted connection.
    ///
    /// # Errors
    /// The controller refuses the node, or has not proved that it has the token. A refusal has no proof: anyone who
    /// listens at the address can send one.
    pub fn judge(mut self, verdict: &[u8; VERDICT_BYTES]) -> Result<(World, Option<Keys>)> {
        let version = word(verdict, 4);
        match word(verdict, 0) {
            WELCOME if version == VERSION as u32 => {}
            WRONG_TOKEN => return Err(Error::refused("the controller has another token")),
            WELCOME | WRONG_VERSION => return Err(Error::refused(differ(version))),
            MUST_ENCRYPT => return Err(Error::refused(MUST_ENCRYPT_TEXT)),
            MUST_NOT_ENCRYPT => return Err(Error::refused(MUST_NOT_ENCRYPT_TEXT)),
            status => return Err(Error::protocol(format!("the controller answers with unknown status {status}"))),
        }
        let mut sizes = [0; WORLD_BYTES];
        let read = self.noise.read_message(&verdict[STATUS_BYTES..], &mut sizes);
        read.map_err(|_| Error::refused("the controller did not prove that it has the token"))?;
        let [workers, groups, nodes] = [0, 4, 8].map(|at| word(&sizes, at) as usize);
        let world = World::new(workers, groups)?.on_nodes(nodes)?;
        Ok((world, keys(self.noise, self.encrypts)?))
    }
}

const MUST_ENCRYPT_TEXT: &str =
    "the controller encrypts its connections and the node does not: set DISCO_ENCRYPT to the same value for both";
const MUST_NOT_ENCRYPT_TEXT: &str =
    "the node encrypts its connection and the controller does not: set DISCO_ENCRYPT to the same value for both";

/// The bytes that both ends have seen in clear: the greeting, and the head of the answer, which is the same on both ends.
fn prologue(greeting: &[u8; GREETING_BYTES]) -> Vec<u8> {
    [&greeting[..], &head()].concat()
}

/// Whether these bytes can be the start of a record.
pub fn may_begin(record: &[u8]) -> bool {
    record.iter().zip(MAGIC).all(|(came, magic)| came == magic)
}

/// The protocol and version in a record's first bytes.
enum Head {
    Ours,
    Version(u32),
    Strange,
}

fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..].copy_from_slice(&(VERSION as u32).to_le_bytes());
    head
}

fn check_head(record: &[u8]) -> Head {
    match word(record, 8) {
        _ if !record.starts_with(MAGIC) => Head::Strange,
        version if version == VERSION as u32 => Head::Ours,
        version => Head::Version(version),
    }
}

fn verdict(status: u32) -> [u8; VERDICT_BYTES] {
    let mut verdict = [0; VERDICT_BYTES];
    verdict[..4].copy_from_slice(&status.to_le_bytes());
    verdict[4..8].copy_from_slice(&(VERSION as u32).to_le_bytes());
    verdict
}

fn differ(theirs: u32) -> String {
    format!("the other end speaks version {theirs}, this one {VERSION}: both must run the same program")
}

/// The number at an offset of a record.
fn word(record: &[u8], at: usize) -> u32 {
    record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(UNSPECIFIED, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> Secret {
        Secret { token: Token::new(text).unwrap(), encrypts: true }
    }

    fn world() -> World {
        World::new(8, 2).unwrap().on_nodes(2).unwrap()
    }

    const REQUEST: Request = Request { node: Some(1), per_node: None };

    /// The refusals of a controller and of a node, each with its own secret.
    fn refusals(controller: &Secret, node: &Secret) -> [String; 2] {
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(node, host.greeting(), REQUEST).unwrap();
        let Judgement { admitted, verdict } = host.judge(controller, &world(), &answer);
        [admitted.unwrap_err().to_string(), node_handshake.judge(&verdict.unwrap()).unwrap_err().to_string()]
    }

    #[test]
    fn ends_with_the_same_token_accept_each_other() {
        for encrypts in [true, false] {
            let secret = Secret { encrypts, ..secret("a secret of many words") };
            let host = ControllerHandshake::new([1; 32]);
            let (node_handshake, answer) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
            let Judgement { admitted, verdict } = host.judge(&secret, &world(), &answer);
            let (request, keys) = admitted.unwrap();
            assert_eq!((request, keys.is_some()), (REQUEST, encrypts));
            let (theirs, keys) = node_handshake.judge(&verdict.unwrap()).unwrap();
            assert_eq!((theirs, keys.is_some()), (world(), encrypts));
        }
    }

    #[test]
    fn a_wrong_token_is_refused_on_both_ends() {
        let (ours, theirs) = (secret("a secret of many words"), secret("another of as many words"));
        assert_eq!(refusals(&ours, &theirs), ["its token does not match", "the controller has another token"]);
        // A controller that accepts without the token.
        let host = ControllerHandshake::new([1; 32]);
        let (_, answer) = NodeHandshake::answer(&theirs, host.greeting(), REQUEST).unwrap();
        let verdict = host.judge(&theirs, &world(), &answer).verdict.unwrap();
        let (node_handshake, _) = NodeHandshake::answer(&ours, host.greeting(), REQUEST).unwrap();
        let error = node_handshake.judge(&verdict).unwrap_err().to_string();
        assert_eq!(error, "the controller did not prove that it has the token");
    }

    #[test]
    fn ends_of_which_only_one_encrypts_refuse_each_other() {
        let encrypted = secret("a secret of many words");
        let clear = Secret { encrypts: false, ..encrypted.clone() };
        assert_eq!(refusals(&encrypted, &clear), [MUST_ENCRYPT_TEXT; 2]);
        assert_eq!(refusals(&clear, &encrypted), [MUST_NOT_ENCRYPT_TEXT; 2]);
    }

    #[test]
    fn a_replayed_answer_is_refused() {
        let secret = secret("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
        let verdict = host.judge(&secret, &world(), &answer).verdict.unwrap();
        let replayed = ControllerHandshake::new([3; 32]).judge(&secret, &world(), &answer).admitted.unwrap_err();
        assert_eq!(replayed.to_string(), "its token does not match");
        let (later, _) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
        assert!(later.judge(&verdict).is_err(), "a replayed verdict");
        assert!(node_handshake.judge(&verdict).is_ok());
    }

    #[test]
    fn a_reflected_message_is_refused() {
        let secret = secret("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
        let mut reflected = verdict(WELCOME);
        reflected[STATUS_BYTES..].copy_from_slice(&answer[HEAD_BYTES..]);
        assert!(node_handshake.judge(&reflected).is_err());
        let mut reflected = [0; ANSWER_BYTES];
        reflected[..GREETING_BYTES].copy_from_slice(host.greeting());
        assert!(host.judge(&secret, &world(), &reflected).admitted.is_err());
    }

    #[test]
    fn a_record_with_any_changed_bit_is_refused() {
        let secret = secret("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (_, answer) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
        for bit in 0..8 * ANSWER_BYTES {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(host.judge(&secret, &world(), &changed).admitted.is_err(), "bit {bit} of the answer");
        }
        for bit in 0..8 * GREETING_BYTES {
            let mut changed = *host.greeting();
            changed[bit / 8] ^= 1 << (bit % 8);
            let Ok((_, answer)) = NodeHandshake::answer(&secret, &changed, REQUEST) else { continue };
            assert!(host.judge(&secret, &world(), &answer).admitted.is_err(), "bit {bit} of the greeting");
        }
        for bit in 0..8 * VERDICT_BYTES {
            let (node_handshake, answer) = NodeHandshake::answer(&secret, host.greeting(), REQUEST).unwrap();
            let mut changed = host.judge(&secret, &world(), &answer).verdict.unwrap();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(node_handshake.judge(&changed).is_err(), "bit {bit} of the verdict");
        }
    }

    #[test]
    fn another_version_is_refused_with_both_versions_named() {
        let secret = secret("a secret of many words");
        let mut greeting = *ControllerHandshake::new([1; 32]).greeting();
        greeting[8] = 99;
        let error = NodeHandshake::answer(&secret, &greeting, REQUEST).unwrap_err().to_string();
        let text = |theirs| {
            format!("the other end speaks version {theirs}, this one {VERSION}: both must run the same program")
        };
        assert_eq!(error, text(99));
        greeting[0] = b'H';
        let error = NodeHandshake::answer(&secret, &greeting, REQUEST).unwrap_err().to_string();
        assert_eq!(error, "the listener is not a Disco controller");
    }

    /// The version before had the same greeting, and status and version first in its verdict.
    #[test]
    fn an_end_of_the_version_before_is_refused_with_both_versions_named() {
        let secret = secret("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let mut greeting = *host.greeting();
        greeting[8] = 5;
        let error = NodeHandshake::answer(&secret, &greeting, REQUEST).unwrap_err().to_string();
        let text = format!("the other end speaks version 5, this one {VERSION}: both must run the same program");
        assert_eq!(error, text);
        let mut answer = [0; ANSWER_BYTES];
        answer[..HEAD_BYTES].copy_from_slice(&greeting[..HEAD_BYTES]);
        let Judgement { admitted, verdict } = host.judge(&secret, &world(), &answer);
        assert_eq!(admitted.unwrap_err().to_string(), text);
        assert_eq!(verdict.unwrap()[..STATUS_BYTES], [2, 0, 0, 0, VERSION as u8, 0, 0, 0]);
    }

    #[test]
    fn may_begin_tells_the_start_of_a_record_from_other_bytes() {
        assert!(may_begin(b"") && may_begin(b"disc") && may_begin(ControllerHandshake::new([1; 32]).greeting()));
        assert!(!may_begin(b"G") && !may_begin(b"discnodf") && !may_begin(&[0; ANSWER_BYTES]));
    }
}
