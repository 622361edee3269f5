//! The invitation that tells a process which worker of which controller it is, passed in an environment variable.

use std::env;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use disco_core::{Error, Result, WorkerId};
use disco_engine::random;

use crate::remote::environment;

/// The environment variable with the [text](Invitation::text) of a worker's invitation.
pub const VARIABLE: &str = "DISCO_WORKER";

/// The value of [`VARIABLE`] for a spare: it gets its invitation over the socket that is its standard input.
pub(super) const SPARE: &str = "spare";
/// Most bytes of an invitation's text.
const MAX_TEXT_BYTES: u64 = 1 << 10;

/// The data that a worker needs to join its controller. It is a secret: any process that has it can join as that
/// worker.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The worker that the process is to be.
    pub worker: WorkerId,
    /// The abstract name of the controller's socket.
    pub(super) socket: String,
    /// Proves to the controller that the process was invited.
    pub(super) token: Arc<[u8]>,
}

impl Invitation {
    /// Whether the environment of this process holds an invitation that was not taken yet.
    pub fn is_there() -> bool {
        env::var_os(VARIABLE).is_some()
    }

    /// Takes the invitation [out of the environment](environment::take). Returns `None` in a process that is no worker. In a
    /// [spare](crate::remote::processes::Spares), waits until the spare gets the place of a worker, or its session ends.
    ///
    /// # Errors
    /// The variable does not hold an invitation. [`Error::Closed`] in a spare whose session has ended without a need for it.
    pub fn take() -> Option<Result<Self>> {
        let text = environment::take(VARIABLE)?;
        Some(match text.to_str() {
            Some(SPARE) => Self::wait(),
            Some(text) => Self::parse(text),
            None => Err(invalid(&text.display())),
        })
    }

    /// Tells the controller that this process is a spare that has started, and waits for its invitation.
    #[allow(clippy::disallowed_methods, reason = "a line is whole if it has its end")]
    fn wait() -> Result<Self> {
        let failed =
            |error| Error::system("a spare worker can't talk to its controller over its standard input", error);
        let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
        let mut text = String::new();
        // The controller may have closed its end already.
        _ = socket.write_all(b"\n");
        BufReader::new(socket.take(MAX_TEXT_BYTES)).read_line(&mut text).map_err(failed)?;
        match text.strip_suffix('\n') {
            Some(text) => Self::parse(text),
            None => Err(Error::Closed("a spare worker".to_owned())),
        }
    }

    /// Parses the [text](Self::text) of an invitation.
    ///
    /// # Errors
    /// The text is not an invitation.
    pub fn parse(text: &str) -> Result<Self> {
        Self::read(text).ok_or_else(|| invalid(&text))
    }

    /// Returns `worker:socket:token`, with the token in hexadecimal. Pass it on to this worker only: it is a secret.
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

fn invalid(text: &dyn fmt::Display) -> Error {
    Error::invalid(format!(
        "{VARIABLE}={text} is not a worker's invitation; Disco sets this variable for the processes that it starts"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_parsed_from_its_text_and_other_texts_are_refused() {
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
