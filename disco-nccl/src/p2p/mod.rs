//! What the GPUs of this machine are to each other, by NVML: which links there are, and whether kernels of our own can use them.
//!
//! ```text
//! nvml    NVML's functions, and a walk over the links that it knows
//! survey  the GPUs that this process sees, and what was decided of them
//! ```

mod nvml;
mod survey;

pub use disco_ccl::p2p::{BusId, Decision, Mesh, RANKS, Site, Survey, Topology, host};
pub use nvml::mesh;
pub use survey::{site, topology};
