//! How a process learns that it is a worker: a variable of its environment.

use std::env;
use std::fmt;
use std::sync::Arc;

use disco_core::{Error, Result, WorkerId};

use crate::{environment, random};

/// The variable that has the [text](Invitation::text) of a worker's invitation.
pub const VARIABLE: &str = "DISCO_WORKER";

/// What a worker needs to join its controller. Whoever has it can be that worker.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// Which worker it is to be.
    pub worker: WorkerId,
    /// The abstract name of the controller's socket.
    pub(super) socket: String,
    /// Shows that the controller has started it.
    pub(super) token: Arc<[u8]>,
}

impl Invitation {
    /// Whether this process carries an invitation that it has not taken.
    pub fn is_there() -> bool {
        env::var_os(VARIABLE).is_some()
    }

    /// Takes this process's invitation [out of the environment](environment::take).
    ///
    /// # Errors
    /// It is not readable.
    pub fn take() -> Option<Result<Self>> {
        let text = environment::take(VARIABLE)?;
        Some(text.to_str().ok_or_else(|| nobody(&text.display())).and_then(Self::parse))
    }

    /// The invitation that a text is.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self> {
        Self::read(text).ok_or_else(|| nobody(&text))
    }

    /// `worker:socket:token`, the last in hexadecimal digits; a secret, to be passed on to this worker alone.
    pub fn text(&self) -> String {
        format!("{}:{}:{}", self.worker.index(), self.socket, random::hex(&self.token))
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (worker, socket, token) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || token.len() % 2 != 0 || !token.is_ascii() {
            return None;
        }
        let token = (0..token.len()).step_by(2).map(|at| u8::from_str_radix(&token[at..at + 2], 16).ok());
        Some(Self {
            worker: WorkerId::new(worker.parse().ok()?),
            socket: socket.to_owned(),
            token: token.collect::<Option<_>>()?,
        })
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token.
        f.debug_struct("Invitation").field("worker", &self.worker).finish_non_exhaustive()
    }
}

fn nobody(text: &dyn fmt::Display) -> Error {
    Error::invalid(format!("{VARIABLE}={text} invites nobody; Disco sets it for its workers"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_survives_the_environment() {
        let token: Arc<[u8]> = [0, 255, 16].into();
        let invitation = Invitation { worker: WorkerId::new(3), socket: "disco-1f".into(), token };
        assert_eq!(invitation.text(), "3:disco-1f:00ff10");
        assert_eq!(Invitation::parse(&invitation.text()).unwrap(), invitation);
        assert!(!format!("{invitation:?}").contains("ff"), "the token is a secret");
        for bad in ["", "3", "3:a", "x:a:00", "3:a:0", "3:a:zz", "3:a:00:b", "3:a:é0"] {
            assert!(Invitation::parse(bad).is_err(), "{bad}");
        }
    }
}
