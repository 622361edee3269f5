//! Who is let in: connections are nobody's until they have proved what they are, in limited time and number.

mod nodes;
mod pending;
mod processes;
mod refused;

pub(crate) use nodes::{Joined, NodeTerms, Nodes};
pub(crate) use processes::{Processes, Verdict};
