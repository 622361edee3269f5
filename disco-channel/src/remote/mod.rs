//! Lanes to workers outside of this process, in processes of this machine and on other machines. They need Linux.
//!
//! ```text
//! session ─▶ processes │ nodes ─▶ lane (ring, connections) ─▶ reactor ─▶ engine (disco-engine)      the controller's end
//!            processes │ nodes ─▶ reactor::member          ─▶ engine                              the other end
//!            tvm: lanes and workers of TVM's Disco, which has a protocol of its own
//! ```
//!
//! | file | content |
//! |---|---|
//! | `session.rs` | a whole session in one call |
//! | `output.rs`, `terminal.rs` | lines that workers print |
//! | `process.rs`, `open_files.rs`, `environment.rs` | starting processes: their ends, descriptors and variables |
//! | `store.rs` | the store of the session, over a connection |
//! | `subset.rs` | lanes to workers of a parent session |
//! | `programs/` | the activity of other programs' sessions |

pub mod environment;
#[cfg(fuzzing)]
pub mod fuzzing;
mod join_timeout;
mod lane;
pub mod nodes;
mod open_files;
mod output;
mod process;
pub mod processes;
pub mod programs;
mod reactor;
pub(crate) mod session;
mod store;
mod subset;
pub mod terminal;
#[cfg(feature = "tvm")]
pub mod tvm;

pub use nodes::NodeLane;
pub use processes::{ProcessEndpoint, ProcessLane};
