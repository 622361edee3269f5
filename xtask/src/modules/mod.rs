//! Finds cycles between the modules of a folder: those of a crate, and those inside each module that has some.
//!
//! A module is a file or a folder. It depends on each module of the same folder that its code names by a path from the root
//! (`crate::x`) or from the folder (enough `super::`). A re-export of the folder counts as the module that defines the item.
//! Tests, documentation and the folder's own file do not count.

mod check;
mod graph;
mod paths;
mod source;

pub(crate) use check::check;
