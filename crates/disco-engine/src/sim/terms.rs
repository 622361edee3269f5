//! The session of every simulation: its token and timeouts, its store, and the messages on its connections.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use disco_core::store::{MemoryStore, SharedStore as _, StoreCall};
use disco_core::wire::{Assignment, Message, Packet};
use disco_core::worker::WorkerConfig;
use disco_core::{Error, Result, Value, WorkerRange, World as Size};

use crate::controller::{Conn, Missing, NodeTerms, Tree};
use crate::handshake::Secret;
use crate::token::Token;

/// The token of the session.
pub(super) const SECRET: &str = "the token of this simulation";
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// Makes a secret of an end that encrypts.
pub(super) fn secret(text: &str) -> Secret {
    Secret { token: Token::new(text).expect("a token"), encrypts: true }
}

/// Decodes the messages of packets.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Message>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let split = Packet::split(bytes);
        Some(match split {
            Ok((packet, rest)) => {
                bytes = rest;
                Message::decode(packet).map_err(Error::from)
            }
            Err(error) => {
                bytes = &[];
                Err(error.into())
            }
        })
    })
}

/// The requirements for the nodes of `tree`, which connect only during the start.
pub(super) fn node_terms(tree: Tree, world: Size, per_node: usize) -> NodeTerms {
    NodeTerms {
        secret: secret(SECRET),
        world,
        tree,
        names: Vec::new(),
        per_node,
        silence: SILENCE,
        max_pending: usize::MAX,
        stays_open: false,
        has_standby: false,
        missing: Missing::default(),
        report: |_| {},
    }
}

/// The assignment of the session's nodes, before the engine fills in each one's place.
pub(super) fn assignment(config: WorkerConfig, workers: WorkerRange, start: Duration) -> Assignment {
    let (heartbeat, silence) = (HEARTBEAT, SILENCE);
    Assignment { node: 0, workers, behind: Arc::default(), processes: false, config, heartbeat, silence, start }
}

/// An answer to a call over a connection.
pub(super) struct Answer {
    pub(super) conn: Conn,
    pub(super) id: u64,
    pub(super) result: Result<Value>,
}

/// The session's store, and its answers that were not sent yet.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) memory: Arc<MemoryStore>,
    answers: Arc<Mutex<Vec<Answer>>>,
}

impl Store {
    /// Makes a call, whose answer comes now or later.
    pub(super) fn call(&self, (conn, id): (Conn, u64), epoch: u64, call: StoreCall) {
        let answers = self.answers.clone();
        let reply = move |result| answers.lock().expect("one thread").push(Answer { conn, id, result });
        self.memory.call(epoch, call, Box::new(reply));
    }

    /// Takes the answers that have come.
    pub(super) fn take_answers(&self) -> Vec<Answer> {
        std::mem::take(&mut self.answers.lock().expect("one thread"))
    }
}
