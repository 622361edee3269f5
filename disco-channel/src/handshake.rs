//! The handshake by which a node and its controller prove to each other that they have the same token. Does no I/O.
//!
//! ```text
//! node                                                       controller
//!                 ◀── GREETING  magic, version, nonce                        44 bytes
//! ANSWER  magic, version, node, workers of a node, nonce, proof ──▶          84 bytes
//!                 ◀── VERDICT   status, version, workers, groups, nodes, proof   52 bytes
//! ```
//!
//! Numbers are little endian. A proof is an HMAC-SHA256, keyed by the token, of the sender's role, the greeting, and
//! the answer (and verdict) up to the proof. It covers both nonces, so that a recorded answer can't be replayed, and
//! the role, so that a proof can't be reflected to its sender. All records have a fixed size. Before the proof is
//! checked, only magic and version are read. A refusal has no proof and carries nothing but its status.

use std::time::Duration;

use disco_core::wire::VERSION;
use disco_core::{Error, Result, World};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::token::Token;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = HEAD_BYTES + NONCE_BYTES;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = UNPROVED_ANSWER_BYTES + PROOF_BYTES;
/// Bytes of a verdict.
pub const VERDICT_BYTES: usize = UNPROVED_VERDICT_BYTES + PROOF_BYTES;

/// Timeout for a connection's proof, and for its introduction (JOIN or HELLO).
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Heartbeat interval of a node that waits for other nodes to join.
pub(crate) const ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// The largest introduction, most of which is names of worker functions.
pub(crate) const MAX_INTRODUCTION_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"discnode";
const HEAD_BYTES: usize = 12;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
/// Bytes of an answer without its proof.
const UNPROVED_ANSWER_BYTES: usize = HEAD_BYTES + 8 + NONCE_BYTES;
/// Bytes of a verdict without its proof.
const UNPROVED_VERDICT_BYTES: usize = 20;

/// Stands for a number that the node leaves to the controller.
const UNSPECIFIED: u32 = u32::MAX;

/// The statuses of a verdict.
const WELCOME: u32 = 0;
const WRONG_TOKEN: u32 = 1;
const WRONG_VERSION: u32 = 2;

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

/// The controller's side of one handshake.
#[derive(Debug)]
pub struct ControllerHandshake {
    greeting: [u8; GREETING_BYTES],
}

/// A node's side of one handshake.
#[derive(Debug)]
pub struct NodeHandshake {
    greeting: [u8; GREETING_BYTES],
    answer: [u8; ANSWER_BYTES],
}

/// The controller's decision on an answer.
#[non_exhaustive]
#[derive(Debug)]
pub struct Judgement {
    /// The place that the node asks for, or why the node is refused.
    pub request: Result<Request>,
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

    /// Checks an answer, which has to prove knowledge of `token`, and makes the verdict.
    pub fn judge(&self, token: &Token, world: &World, answer: &[u8; ANSWER_BYTES]) -> Judgement {
        let (asked, proof) = answer.split_at(UNPROVED_ANSWER_BYTES);
        let refuse = |status, why: String| {
            let verdict = Some(verdict(status));
            Judgement { request: Err(Error::refused(why)), verdict }
        };
        match check_head(asked) {
            Head::Ours => {}
            Head::Version(theirs) => return refuse(WRONG_VERSION, differ(theirs)),
            Head::Strange => {
                return Judgement {
                    request: Err(Error::protocol("it does not speak the Disco protocol")),
                    verdict: None,
                };
            }
        }
        if !is_proof(proof, token, b"disco node", &[&self.greeting, asked]) {
            return refuse(WRONG_TOKEN, "its token does not match".into());
        }
        let number = |at: usize| Some(word(asked, at)).filter(|number| *number != UNSPECIFIED);
        let request = Request { node: number(HEAD_BYTES), per_node: number(HEAD_BYTES + 4) };
        let mut verdict = verdict(WELCOME);
        for (at, number) in [(8, world.size()), (12, world.groups()), (16, world.nodes())] {
            verdict[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let proof = prove(token, b"disco controller", &[&self.greeting, answer, &verdict[..UNPROVED_VERDICT_BYTES]]);
        verdict[UNPROVED_VERDICT_BYTES..].copy_from_slice(&proof);
        Judgement { request: Ok(request), verdict: Some(verdict) }
    }
}

impl NodeHandshake {
    /// Answers a greeting.
    ///
    /// # Errors
    /// The greeting is not Disco's, or of another protocol version.
    pub fn answer(
        token: &Token,
        greeting: &[u8; GREETING_BYTES],
        nonce: Nonce,
        request: Request,
    ) -> Result<(Self, [u8; ANSWER_BYTES])> {
        match check_head(greeting) {
            Head::Ours => {}
            Head::Version(theirs) => return Err(Error::refused(differ(theirs))),
            Head::Strange => return Err(Error::protocol("the listener is not a Disco controller")),
        }
        let mut answer = [0; ANSWER_BYTES];
        answer[..HEAD_BYTES].copy_from_slice(&head());
        for (at, number) in [(HEAD_BYTES, request.node), (HEAD_BYTES + 4, request.per_node)] {
            answer[at..at + 4].copy_from_slice(&number.unwrap_or(UNSPECIFIED).to_le_bytes());
        }
        answer[HEAD_BYTES + 8..UNPROVED_ANSWER_BYTES].copy_from_slice(&nonce);
        let proof = prove(token, b"disco node", &[greeting, &answer[..UNPROVED_ANSWER_BYTES]]);
        answer[UNPROVED_ANSWER_BYTES..].copy_from_slice(&proof);
        Ok((Self { greeting: *greeting, answer }, answer))
    }

    /// Checks the verdict and returns the controller's world.
    ///
    /// # Errors
    /// The controller refuses the node, or has not proved that it has the token. A refusal has no proof: anyone who
    /// listens at the address can send one.
    pub fn judge(&self, token: &Token, verdict: &[u8; VERDICT_BYTES]) -> Result<World> {
        let (body, proof) = verdict.split_at(UNPROVED_VERDICT_BYTES);
        match word(body, 0) {
            WELCOME => {}
            WRONG_TOKEN => return Err(Error::refused("the controller has another token")),
            WRONG_VERSION => return Err(Error::refused(differ(word(body, 4)))),
            status => return Err(Error::protocol(format!("the controller answers with unknown status {status}"))),
        }
        if !is_proof(proof, token, b"disco controller", &[&self.greeting, &self.answer, body]) {
            return Err(Error::refused("the controller did not prove that it has the token"));
        }
        let [workers, groups, nodes] = [8, 12, 16].map(|at| word(body, at) as usize);
        World::new(workers, groups)?.on_nodes(nodes)
    }
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

/// The HMAC of the token over a role and records. `None` does not happen, because HMAC accepts keys of any length.
fn mac(token: &Token, role: &[u8], records: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.bytes()).ok()?;
    mac.update(role);
    records.iter().for_each(|record| mac.update(record));
    Some(mac)
}

/// Constant-time comparison.
fn is_proof(proof: &[u8], token: &Token, role: &[u8], records: &[&[u8]]) -> bool {
    mac(token, role, records).is_some_and(|mac| mac.verify_slice(proof).is_ok())
}

fn prove(token: &Token, role: &[u8], records: &[&[u8]]) -> [u8; PROOF_BYTES] {
    mac(token, role, records).map_or([0; PROOF_BYTES], |mac| mac.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text).unwrap()
    }

    fn world() -> World {
        World::new(8, 2).unwrap().on_nodes(2).unwrap()
    }

    const REQUEST: Request = Request { node: Some(1), per_node: None };

    #[test]
    fn ends_with_the_same_token_accept_each_other() {
        let token = token("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let Judgement { request, verdict } = host.judge(&token, &world(), &answer);
        assert_eq!(request.unwrap(), REQUEST);
        assert_eq!(node_handshake.judge(&token, &verdict.unwrap()).unwrap(), world());
    }

    #[test]
    fn a_wrong_token_is_refused_on_both_ends() {
        let (ours, theirs) = (token("a secret of many words"), token("another of as many words"));
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&theirs, host.greeting(), [2; 32], REQUEST).unwrap();
        let Judgement { request, verdict } = host.judge(&ours, &world(), &answer);
        assert_eq!(request.unwrap_err().to_string(), "its token does not match");
        let error = node_handshake.judge(&theirs, &verdict.unwrap()).unwrap_err().to_string();
        assert_eq!(error, "the controller has another token");
        // A controller that accepts without a proof of the token.
        let verdict = ControllerHandshake::new([1; 32]).judge(&theirs, &world(), &answer).verdict.unwrap();
        let (node_handshake, _) = NodeHandshake::answer(&ours, host.greeting(), [2; 32], REQUEST).unwrap();
        let error = node_handshake.judge(&ours, &verdict).unwrap_err().to_string();
        assert_eq!(error, "the controller did not prove that it has the token");
    }

    #[test]
    fn a_replayed_answer_is_refused() {
        let token = token("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let verdict = host.judge(&token, &world(), &answer).verdict.unwrap();
        let replayed = ControllerHandshake::new([3; 32]).judge(&token, &world(), &answer).request.unwrap_err();
        assert_eq!(replayed.to_string(), "its token does not match");
        let (later, _) = NodeHandshake::answer(&token, host.greeting(), [4; 32], REQUEST).unwrap();
        assert!(later.judge(&token, &verdict).is_err());
        assert!(node_handshake.judge(&token, &verdict).is_ok());
    }

    #[test]
    fn a_reflected_proof_is_refused() {
        let token = token("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let mut reflected = [0; VERDICT_BYTES];
        reflected[UNPROVED_VERDICT_BYTES..].copy_from_slice(&answer[UNPROVED_ANSWER_BYTES..]);
        assert!(node_handshake.judge(&token, &reflected).is_err());
        let mut reflected = [0; ANSWER_BYTES];
        reflected[..GREETING_BYTES].copy_from_slice(host.greeting());
        assert!(host.judge(&token, &world(), &reflected).request.is_err());
    }

    #[test]
    fn a_record_with_any_changed_bit_is_refused() {
        let token = token("a secret of many words");
        let host = ControllerHandshake::new([1; 32]);
        let (node_handshake, answer) = NodeHandshake::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let verdict = host.judge(&token, &world(), &answer).verdict.unwrap();
        for bit in 0..8 * ANSWER_BYTES {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(host.judge(&token, &world(), &changed).request.is_err(), "bit {bit}");
        }
        for bit in 0..8 * VERDICT_BYTES {
            let mut changed = verdict;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(node_handshake.judge(&token, &changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_refused_with_both_versions_named() {
        let token = token("a secret of many words");
        let mut greeting = *ControllerHandshake::new([1; 32]).greeting();
        greeting[8] = 99;
        let error = NodeHandshake::answer(&token, &greeting, [2; 32], REQUEST).unwrap_err().to_string();
        assert_eq!(error, "the other end speaks version 99, this one 5: both must run the same program");
        greeting[0] = b'H';
        let error = NodeHandshake::answer(&token, &greeting, [2; 32], REQUEST).unwrap_err().to_string();
        assert_eq!(error, "the listener is not a Disco controller");
    }

    #[test]
    fn may_begin_tells_the_start_of_a_record_from_other_bytes() {
        assert!(may_begin(b"") && may_begin(b"disc") && may_begin(ControllerHandshake::new([1; 32]).greeting()));
        assert!(!may_begin(b"G") && !may_begin(b"discnodf") && !may_begin(&[0; ANSWER_BYTES]));
    }
}
