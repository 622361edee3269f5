//! How a member stops its workers and ends: after a shutdown, a failure or a loss.

use std::time::{Duration, Instant};

use disco_core::error::LossCause;
use disco_core::wire::Message;
use disco_core::{Error, Result};

use super::serving::{Action, Kind, Member, Node, Phase, controller_lost};

/// Time that a worker has to end by itself after its controller is lost.
const WORKER_GRACE: Duration = Duration::from_secs(4);
/// Time that a node's workers have to end after the controller is lost.
const NODE_GRACE: Duration = Duration::from_secs(1);

impl Member {
    /// Stops a member whose workers were already told to leave, as the controller does not wait for it any more.
    pub(super) fn stop_quietly(&mut self) {
        self.stop("the session shuts down", Duration::ZERO, Ok(()), None);
    }

    /// Stops the member, since the controller is lost or an action failed.
    pub(super) fn fail(&mut self, error: Error, now: Instant) {
        match self.kind {
            Kind::Worker { has_left } => {
                tracing::info!(%error, "the worker stops");
                self.stop(&error.to_string(), WORKER_GRACE, Err(error), Some(now + WORKER_GRACE));
                if has_left {
                    self.end(Ok(()));
                }
            }
            Kind::Node(_) => {
                tracing::error!(%error, "the node stops its workers");
                // The connection may still work, for instance after a message that this end could not decode.
                self.actions.push_back(Action::Send(Message::Bye(error.to_string())));
                self.stop(&error.to_string(), NODE_GRACE, Err(error), None);
            }
        }
    }

    fn stop(&mut self, why: &str, limit: Duration, result: Result<()>, kill: Option<Instant>) {
        if let Kind::Node(node) = &mut self.kind {
            node.pending.clear();
        }
        self.phase = Phase::Stopping { result, kill };
        self.actions.push_back(Action::Stop { cause: why.into(), limit });
    }

    /// Handles that the workers have left, except those named in `stuck`.
    pub(super) fn leave(&mut self, stuck: String) {
        let result = match (&mut self.kind, std::mem::replace(&mut self.phase, Phase::Leaving)) {
            (Kind::Worker { has_left }, phase @ (Phase::Serving | Phase::Leaving)) => {
                *has_left = true;
                self.phase = phase;
                return;
            }
            (_, Phase::Stopping { result, .. }) => result,
            _ => Ok(()),
        };
        if let Kind::Worker { .. } = self.kind {
            return self.end(result);
        }
        self.actions.push_back(Action::SendLast(Message::Left(stuck.clone())));
        let error = match &self.kind {
            _ if !stuck.is_empty() => Error::state(format!("these workers did not stop: {stuck}")),
            Kind::Node(Node { dropped_after: Some(failure), .. }) => {
                let why = format!("its program has dropped the session after a failure: {failure}");
                controller_lost(LossCause::ClosedWithReason(why))
            }
            _ => return self.end(result),
        };
        self.end(result.and(Err(error)));
    }

    pub(super) fn end(&mut self, result: Result<()>) {
        self.phase = Phase::Over;
        self.actions.push_back(Action::End(result));
    }
}
