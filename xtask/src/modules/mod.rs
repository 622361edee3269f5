//! Finds cycles between the top-level modules of a crate.
//!
//! A module is a file or a folder under `src/`. It depends on another one that its code names by a path from the root
//! (`crate::x`, or enough `super::`). What the root re-exports counts as the module that has it. Tests and documentation do not
//! count, and neither does the root itself.

mod check;
mod graph;
mod paths;
mod source;

pub(crate) use check::check;
