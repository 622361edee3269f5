//! The end of one rank: its messages, under the deadline of an operation.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use disco_core::error::{LossCause, LostPeer};
use disco_core::{Abort as _, Error, Rank, Result};

use crate::hub::{Hub, Inbox, Message};

/// The end of one rank.
pub(crate) struct Endpoint {
    pub(crate) hub: Arc<Hub>,
    rank: usize,
    inbox: Inbox,
    /// Messages of each peer that arrived while this rank waited for another peer.
    pending: Vec<VecDeque<Message>>,
    /// Limit of one operation.
    pub(crate) deadline: Duration,
    /// Deadline of the running operation, and its name for errors.
    until: Instant,
    operation: String,
}

impl Endpoint {
    /// The end of `rank`, whose operations take at most `deadline`.
    pub(crate) fn new(hub: Arc<Hub>, rank: usize, deadline: Duration) -> Result<Self> {
        let (inbox, size) = (hub.inbox(rank)?, hub.size());
        let pending = (0..size).map(|_| VecDeque::new()).collect();
        Ok(Self { hub, rank, inbox, pending, deadline, until: Instant::now(), operation: String::new() })
    }

    /// This rank's number.
    pub(crate) fn index(&self) -> usize {
        self.rank
    }

    /// The other ranks.
    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.hub.size()).filter(move |peer| *peer != rank)
    }

    /// Sends `bytes` to each of these ranks, without waiting.
    pub(crate) fn post(&self, to: impl IntoIterator<Item = usize>, bytes: &[u8]) {
        self.hub.post(self.rank, to.into_iter().map(|to| (to, Message::Bytes(bytes.to_vec()))));
    }

    /// Receives the next message of a rank, which must be `len` bytes.
    pub(crate) fn bytes(&mut self, from: usize, len: usize) -> Result<Vec<u8>> {
        match self.message(from)? {
            Message::Bytes(bytes) if bytes.len() == len => Ok(bytes),
            Message::Bytes(bytes) => Err(Error::Mismatch {
                operation: self.operation.clone(),
                detail: format!("rank {from} sent {} bytes, rank {} expects {len}", bytes.len(), self.rank),
            }),
            _ => Err(self.differs(from)),
        }
    }

    /// The error of a rank that runs another operation.
    pub(crate) fn differs(&self, from: usize) -> Error {
        let detail = format!("rank {from} runs another operation than rank {}", self.rank);
        Error::Mismatch { operation: self.operation.clone(), detail }
    }

    /// Receives the next message of a rank. Waits until the deadline of the running operation, or an abort.
    pub(crate) fn message(&mut self, from: usize) -> Result<Message> {
        loop {
            // The check for an abort comes first: messages that were sent before the abort are still received.
            let abort_cause = self.hub.abort_cause();
            self.inbox.try_iter().for_each(|(sender, message)| self.pending[sender].push_back(message));
            self.pending[from].retain(|message| !matches!(message, Message::Wake));
            match self.pending[from].pop_front() {
                Some(Message::Dropped) => {
                    return Err(Error::peer_lost(
                        LostPeer::Rank(Rank::new(from as u32)),
                        LossCause::CommunicatorDropped,
                    ));
                }
                Some(message) => return Ok(message),
                None => {}
            }
            if let Some(cause) = abort_cause {
                return Err(Error::Aborted { cause });
            }
            match self.inbox.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok((sender, message)) => self.pending[sender].push_back(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(Error::Deadline {
                        operation: self.operation.clone(),
                        after: self.deadline,
                        state: format!("rank {from} has sent nothing"),
                    });
                }
            }
        }
    }

    /// Runs an operation under the deadline. If it fails, the communicator is aborted on all ranks.
    pub(crate) fn run<T>(&mut self, operation: String, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(cause) = self.hub.abort_cause() {
            return Err(Error::Broken { operation, cause });
        }
        // `Duration::MAX` means no limit; it can't be added to the time.
        let now = Instant::now();
        self.until = now.checked_add(self.deadline).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        self.operation = operation;
        let result = work(self);
        if let Err(error) = &result {
            self.hub.abort(&error.to_string().into());
        }
        result
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.hub.post(self.rank, self.peers().map(|peer| (peer, Message::Dropped)));
    }
}
