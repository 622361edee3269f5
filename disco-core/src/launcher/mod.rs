//! Launchers: programs that start a program as several tasks, and describe each task in environment variables.
//!
//! ```text
//! launcher (srun, torchrun, mpiexec, Kubernetes …)
//!    ├─ task 0   the controller, worker 0
//!    ├─ task 1   worker 1
//!    ┆
//! ```

mod place;
mod table;

pub use place::Place;
