//! NCCL: ranks are threads of one process or of several, and do on their streams' threads what kernels would do.
//!
//! ```text
//! abi             types and codes of the interface
//! config          how a communicator is to be made
//! unique_id       where the ranks of a communicator meet
//! tally           how much was launched
//! text            what was said last
//! clique          what the ranks of a communicator share, and wait for
//! comm            one rank's communicator
//! lifecycle       from init to finalize, destroy and abort
//! split           children of a communicator
//! connection      what the first launch of a kind waits for
//! background      what calls go on with, unless they wait
//! call            one call of a communication function, checked
//! group           calls between start and end, checked together and launched
//! unit            what was launched at once, when a stream comes to it
//! captured        units in graphs
//! collective      ranks meet in a collective, and one of them carries it out
//! point_to_point  sends and receives find each other
//! across          ranks in several processes
//! number, reduce  arithmetic
//! exports         the C functions
//! ```

pub mod abi;
pub(crate) mod across;
pub(crate) mod background;
pub(crate) mod call;
pub(crate) mod captured;
pub(crate) mod clique;
pub(crate) mod collective;
pub(crate) mod comm;
pub mod config;
pub(crate) mod connection;
pub mod exports;
pub(crate) mod group;
pub(crate) mod lifecycle;
pub(crate) mod number;
pub(crate) mod point_to_point;
pub(crate) mod reduce;
pub(crate) mod split;
pub(crate) mod tally;
pub(crate) mod text;
pub(crate) mod unique_id;
pub(crate) mod unit;
