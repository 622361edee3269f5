//! How both ends of a connection prove that they have the same token, without a socket or a clock.
//!
//! ```text
//! node                                                       controller
//!                 ◀── GREETING  magic, version, nonce                        44 bytes
//! ANSWER  magic, version, node, workers of a node, nonce, proof ──▶          84 bytes
//!                 ◀── VERDICT   status, version, workers, groups, nodes, proof   52 bytes
//! ```
//!
//! Little endian. A proof is the HMAC-SHA256 under the token of who gives it (a word for each end), the greeting, and the
//! answer or verdict up to it: of what both ends have said so far, with both nonces. So an answer that was heard
//! before proves nothing to another greeting, and no end can be sent its own proof. All records are of fixed size, and nothing is
//! looked at before the proof but magic and version; a refusal has no proof, and says nothing but which one it is.

use std::time::Duration;

use disco_core::wire::VERSION;
use disco_core::{Error, Result, World};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::token::Token;

/// Bytes of a greeting, an answer, a verdict.
pub const GREETING: usize = HEAD + NONCE;
/// Bytes of an answer.
pub const ANSWER: usize = ASKED + PROOF;
/// Bytes of a verdict.
pub const VERDICT: usize = SAID + PROOF;

/// How long one may take to prove who it is, and to introduce itself.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);
/// How often a node that has introduced itself says that it is there, while others come.
pub(crate) const ALIVE: Duration = Duration::from_secs(1);
/// The largest introduction: names of functions take the most of it.
pub(crate) const INTRODUCTION: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"discnode";
const HEAD: usize = 12;
const NONCE: usize = 32;
const PROOF: usize = 32;
/// Of an answer, without its proof.
const ASKED: usize = HEAD + 8 + NONCE;
/// Of a verdict, without its proof.
const SAID: usize = 20;

/// Number that means that the other end may choose.
const ANY: u32 = u32::MAX;

/// The statuses of a verdict.
const WELCOME: u32 = 0;
const WRONG_TOKEN: u32 = 1;
const WRONG_VERSION: u32 = 2;

/// A nonce: 32 random bytes, used once.
pub type Nonce = [u8; NONCE];

/// What a node wants to be.
#[allow(clippy::exhaustive_structs, reason = "a part of the handshake: another field is another version")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Which node, if it was told.
    pub node: Option<u32>,
    /// How many workers it was told to have.
    pub per_node: Option<u32>,
}

/// The controller's side of one handshake.
#[derive(Debug)]
pub struct Host {
    greeting: [u8; GREETING],
}

/// A node's side of one handshake.
#[derive(Debug)]
pub struct Guest {
    greeting: [u8; GREETING],
    answer: [u8; ANSWER],
}

/// What the controller makes of an answer.
#[non_exhaustive]
#[derive(Debug)]
pub struct Judgement {
    /// What the node wants to be; or why it is none of this session.
    pub request: Result<Request>,
    /// What it is to be told; nothing if it speaks another language.
    pub verdict: Option<[u8; VERDICT]>,
}

impl Host {
    /// A handshake with a nonce of its own.
    pub fn new(nonce: Nonce) -> Self {
        let mut greeting = [0; GREETING];
        greeting[..HEAD].copy_from_slice(&head());
        greeting[HEAD..].copy_from_slice(&nonce);
        Self { greeting }
    }

    /// What is sent first.
    pub fn greeting(&self) -> &[u8; GREETING] {
        &self.greeting
    }

    /// Judges an answer: it has to be made with this token.
    pub fn judge(&self, token: &Token, world: &World, answer: &[u8; ANSWER]) -> Judgement {
        let (asked, proof) = answer.split_at(ASKED);
        let refuse = |status, why: String| {
            let verdict = Some(verdict(status));
            Judgement { request: Err(Error::refused(why)), verdict }
        };
        match check_head(asked) {
            Head::Ours => {}
            Head::Version(theirs) => return refuse(WRONG_VERSION, differ(theirs)),
            Head::Strange => {
                return Judgement { request: Err(Error::protocol("it speaks another language")), verdict: None };
            }
        }
        if !is_proof(proof, token, b"disco node", &[&self.greeting, asked]) {
            return refuse(WRONG_TOKEN, "its token is another".into());
        }
        let number = |at: usize| Some(word(asked, at)).filter(|number| *number != ANY);
        let request = Request { node: number(HEAD), per_node: number(HEAD + 4) };
        let mut verdict = verdict(WELCOME);
        for (at, number) in [(8, world.size()), (12, world.groups()), (16, world.nodes())] {
            verdict[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        let proof = prove(token, b"disco controller", &[&self.greeting, answer, &verdict[..SAID]]);
        verdict[SAID..].copy_from_slice(&proof);
        Judgement { request: Ok(request), verdict: Some(verdict) }
    }
}

impl Guest {
    /// Answers a greeting.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn answer(
        token: &Token,
        greeting: &[u8; GREETING],
        nonce: Nonce,
        request: Request,
    ) -> Result<(Self, [u8; ANSWER])> {
        match check_head(greeting) {
            Head::Ours => {}
            Head::Version(theirs) => return Err(Error::refused(differ(theirs))),
            Head::Strange => return Err(Error::protocol("it is no controller of Disco")),
        }
        let mut answer = [0; ANSWER];
        answer[..HEAD].copy_from_slice(&head());
        for (at, number) in [(HEAD, request.node), (HEAD + 4, request.per_node)] {
            answer[at..at + 4].copy_from_slice(&number.unwrap_or(ANY).to_le_bytes());
        }
        answer[HEAD + 8..ASKED].copy_from_slice(&nonce);
        let proof = prove(token, b"disco node", &[greeting, &answer[..ASKED]]);
        answer[ASKED..].copy_from_slice(&proof);
        Ok((Self { greeting: *greeting, answer }, answer))
    }

    /// Judges the verdict: the world that the controller has.
    ///
    /// # Errors
    /// It refuses, and why; or it does not have this token. Anybody who listens can say so: no refusal has a proof.
    pub fn judge(&self, token: &Token, verdict: &[u8; VERDICT]) -> Result<World> {
        let (said, proof) = verdict.split_at(SAID);
        match word(said, 0) {
            WELCOME => {}
            WRONG_TOKEN => return Err(Error::refused("it has another token")),
            WRONG_VERSION => return Err(Error::refused(differ(word(said, 4)))),
            status => return Err(Error::protocol(format!("it answers with status {status}"))),
        }
        if !is_proof(proof, token, b"disco controller", &[&self.greeting, &self.answer, said]) {
            return Err(Error::refused("it does not have the token"));
        }
        let [workers, groups, nodes] = [8, 12, 16].map(|at| word(said, at) as usize);
        World::new(workers, groups)?.on_nodes(nodes)
    }
}

/// Whether these bytes, of which more may come, can be the first ones of a record.
pub fn may_begin(record: &[u8]) -> bool {
    record.iter().zip(MAGIC).all(|(came, magic)| came == magic)
}

/// What the first bytes of a record say.
enum Head {
    Ours,
    Version(u32),
    Strange,
}

fn head() -> [u8; HEAD] {
    let mut head = [0; HEAD];
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

fn verdict(status: u32) -> [u8; VERDICT] {
    let mut verdict = [0; VERDICT];
    verdict[..4].copy_from_slice(&status.to_le_bytes());
    verdict[4..8].copy_from_slice(&(VERSION as u32).to_le_bytes());
    verdict
}

fn differ(theirs: u32) -> String {
    format!("the other end speaks version {theirs}, this one {VERSION}: both must run the same program")
}

/// The number at a place of a record.
fn word(record: &[u8], at: usize) -> u32 {
    record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(ANY, u32::from_le_bytes)
}

/// None never: any key will do.
fn mac(token: &Token, who: &[u8], said: &[&[u8]]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token.bytes()).ok()?;
    mac.update(who);
    said.iter().for_each(|said| mac.update(said));
    Some(mac)
}

/// Compares without telling by the time how much is right.
fn is_proof(proof: &[u8], token: &Token, who: &[u8], said: &[&[u8]]) -> bool {
    mac(token, who, said).is_some_and(|mac| mac.verify_slice(proof).is_ok())
}

fn prove(token: &Token, who: &[u8], said: &[&[u8]]) -> [u8; PROOF] {
    mac(token, who, said).map_or([0; PROOF], |mac| mac.finalize().into_bytes().into())
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
    fn ends_with_the_same_token_take_each_other() {
        let token = token("a secret of many words");
        let host = Host::new([1; 32]);
        let (guest, answer) = Guest::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let Judgement { request, verdict } = host.judge(&token, &world(), &answer);
        assert_eq!(request.unwrap(), REQUEST);
        assert_eq!(guest.judge(&token, &verdict.unwrap()).unwrap(), world());
    }

    #[test]
    fn a_wrong_token_is_refused_on_both_ends() {
        let (ours, theirs) = (token("a secret of many words"), token("another of as many words"));
        let host = Host::new([1; 32]);
        let (guest, answer) = Guest::answer(&theirs, host.greeting(), [2; 32], REQUEST).unwrap();
        let Judgement { request, verdict } = host.judge(&ours, &world(), &answer);
        assert_eq!(request.unwrap_err().to_string(), "its token is another");
        let told = guest.judge(&theirs, &verdict.unwrap()).unwrap_err().to_string();
        assert_eq!(told, "it has another token");
        // One that only says that it has it.
        let verdict = Host::new([1; 32]).judge(&theirs, &world(), &answer).verdict.unwrap();
        let (guest, _) = Guest::answer(&ours, host.greeting(), [2; 32], REQUEST).unwrap();
        let told = guest.judge(&ours, &verdict).unwrap_err().to_string();
        assert_eq!(told, "it does not have the token");
    }

    #[test]
    fn what_was_said_before_proves_nothing() {
        let token = token("a secret of many words");
        let host = Host::new([1; 32]);
        let (guest, answer) = Guest::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let verdict = host.judge(&token, &world(), &answer).verdict.unwrap();
        let replayed = Host::new([3; 32]).judge(&token, &world(), &answer).request.unwrap_err();
        assert_eq!(replayed.to_string(), "its token is another");
        let (later, _) = Guest::answer(&token, host.greeting(), [4; 32], REQUEST).unwrap();
        assert!(later.judge(&token, &verdict).is_err());
        assert!(guest.judge(&token, &verdict).is_ok());
    }

    #[test]
    fn no_end_takes_its_own_words() {
        let token = token("a secret of many words");
        let host = Host::new([1; 32]);
        let (guest, answer) = Guest::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let mut reflected = [0; VERDICT];
        reflected[SAID..].copy_from_slice(&answer[ASKED..]);
        assert!(guest.judge(&token, &reflected).is_err());
        let mut reflected = [0; ANSWER];
        reflected[..GREETING].copy_from_slice(host.greeting());
        assert!(host.judge(&token, &world(), &reflected).request.is_err());
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let token = token("a secret of many words");
        let host = Host::new([1; 32]);
        let (guest, answer) = Guest::answer(&token, host.greeting(), [2; 32], REQUEST).unwrap();
        let verdict = host.judge(&token, &world(), &answer).verdict.unwrap();
        for bit in 0..8 * ANSWER {
            let mut changed = answer;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(host.judge(&token, &world(), &changed).request.is_err(), "bit {bit}");
        }
        for bit in 0..8 * VERDICT {
            let mut changed = verdict;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(guest.judge(&token, &changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let token = token("a secret of many words");
        let mut greeting = *Host::new([1; 32]).greeting();
        greeting[8] = 99;
        let error = Guest::answer(&token, &greeting, [2; 32], REQUEST).unwrap_err().to_string();
        assert_eq!(error, "the other end speaks version 99, this one 5: both must run the same program");
        greeting[0] = b'H';
        let error = Guest::answer(&token, &greeting, [2; 32], REQUEST).unwrap_err().to_string();
        assert_eq!(error, "it is no controller of Disco");
    }

    #[test]
    fn bytes_that_begin_no_record_are_told_from_the_first_ones_of_one() {
        assert!(may_begin(b"") && may_begin(b"disc") && may_begin(Host::new([1; 32]).greeting()));
        assert!(!may_begin(b"G") && !may_begin(b"discnodf") && !may_begin(&[0; ANSWER]));
    }
}
