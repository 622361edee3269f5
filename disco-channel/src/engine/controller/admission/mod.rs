//! Admission: a connection belongs to no peer until it has proved which one. Time and number of such connections are
//! limited.

mod nodes;
mod pending;
mod processes;
mod refused;

pub(crate) use nodes::{Grown, Joined, NodeTerms, Nodes, Redirected, Tree};
pub(crate) use processes::{Processes, Verdict};
