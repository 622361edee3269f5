//! The programs of this machine that have sessions, and the activity of their workers.
//!
//! Each process with a session, or that serves as a node, listens on a Unix socket with an abstract name, which follows
//! from the user and the process. A client that connects gets the state of the process:
//!
//! ```text
//! client ──▶ program   connects to `disco-status-USER-PROCESS-NUMBER`, as `/proc/net/unix` lists it
//! client ◀── program   JSON of a `disco_core::status::Program`, then end of file
//! ```
//!
//! - Abstract names need no folder, and disappear with their process. They are those of a network namespace, so a client
//!   in a container sees the programs of that container.
//! - Both ends check by the credentials of the socket that the other one is a process of the same user. Root may ask the
//!   programs of all users.
//! - The answers come from a thread that sleeps in `accept`, so they come also while the program and its workers are
//!   stuck. The thread asks no worker, only the lanes.

mod client;
mod server;

pub use self::client::{Found, ask, list};
pub use self::server::{Answering, answer, note};

/// First part of the names of sockets.
const PREFIX: &str = "disco-status-";

/// The name of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    process: u32,
    /// Distinguishes the sockets that a process has one after the other.
    number: u32,
    user: u32,
}

impl Name {
    fn text(self) -> String {
        let Self { user, process, number } = self;
        format!("{PREFIX}{user}-{process}-{number}")
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a name in the system's list of sockets, where other programs have theirs"
    )]
    fn parse(name: &str) -> Option<Self> {
        let mut numbers = name.strip_prefix(PREFIX)?.split('-').map(|number| number.parse().ok());
        let name = Self { user: numbers.next()??, process: numbers.next()??, number: numbers.next()?? };
        numbers.next().is_none().then_some(name)
    }
}

/// Whether a process of user `peer` may ask, or answer to, a process of user `own`.
fn is_trusted(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_after_it_was_text_and_other_names_are_none() {
        let name = Name { user: 1000, process: 7, number: 3 };
        let text = name.text();
        assert_eq!((text.as_str(), Name::parse(&text)), ("disco-status-1000-7-3", Some(name)));
        for other in ["disco-status-1000-7", "disco-status-1000-7-3-1", "disco-status-1000-x-3", "disco-7a"] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }
}
