//! NCCL: ranks are threads of one or several processes. The threads of their streams compute the results in place of
//! kernels.
//!
//! ```text
//! abi             types and codes of the interface
//! config          the configuration of a communicator
//! unique_id       unique ids, and the ranks that have joined by them
//! tally           counters of launches and calls
//! text            the last error text
//! clique          the state that the ranks of a communicator share
//! comm            the communicator of one rank
//! lifecycle       init, finalize, destroy and abort
//! split           splits of a communicator
//! connection      connections between ranks, which the first launches make
//! background      background work of calls, and injected faults
//! call            one checked call of a communication function
//! group           calls between group start and group end, which are launched together
//! unit            calls that are launched together, and their execution on a stream
//! captured        units in graphs
//! collective      the execution of collectives: the last rank to arrive computes the results
//! one_rank        the limits of NCCL's kernel for one rank
//! point_to_point  the matching of sends and receives
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
pub(crate) mod one_rank;
pub(crate) mod point_to_point;
pub(crate) mod reduce;
pub(crate) mod split;
pub(crate) mod tally;
pub(crate) mod text;
pub(crate) mod unique_id;
pub(crate) mod unit;
