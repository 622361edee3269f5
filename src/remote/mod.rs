//! Parts of sessions with workers outside of this process, below the builder: processes of this machine, other machines,
//! tasks of a launcher. They need Linux.

#[cfg(feature = "trace")]
pub(crate) mod dump;
mod job_socket;
pub(crate) mod log_files;
pub(crate) mod node;
#[cfg(feature = "mpi")]
pub(crate) mod ranks;
pub(crate) mod role;
pub mod signals;
pub(crate) mod start_nodes;
pub(crate) mod tasks;
#[cfg(feature = "tvm")]
pub mod tvm;
