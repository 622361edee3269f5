//! Observers of a session: code of other crates that gets each command and each wait.

use std::fmt;

use crate::channel::Reply;
use crate::command::Command;
use crate::error::Result;
use crate::id::RegisterId;

/// Gets each command and each wait of a session, in the order of the session.
///
/// The session calls the methods while it holds the order ticket: no other command is submitted meanwhile, so they must
/// return soon, and must not use the session.
pub trait Observer: Send + Sync {
    /// Command `number`, counted from 1, is about to be passed to the workers, which free the registers `freed` before
    /// they execute it.
    fn submitted(&self, number: u64, freed: &[RegisterId], command: &Command);

    /// The wait for the replies to command `number` has ended: with the replies in the order of the workers, or with the
    /// reason why replies are missing. Not called for a wait whose future was dropped.
    fn waited(&self, number: u64, replies: &Result<Vec<Reply>>);
}

impl fmt::Debug for dyn Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<observer>")
    }
}
