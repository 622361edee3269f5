//! Finds cycles between the top-level modules of a crate.
//!
//! A module is a file or a folder under `src/`. It depends on each module that its code names by a path from the root
//! (`crate::x`, or enough `super::`). A re-export of the root counts as the module that defines the item. Tests,
//! documentation and the root itself do not count.

mod check;
mod graph;
mod paths;
mod source;

pub(crate) use check::check;
