//! All-reduce between GPUs of one machine that access each other's memory: the links between the GPUs, and the kernels.
//!
//! ```text
//! nvml      functions of NVML, and the links between GPUs that it reports
//! survey    the GPUs that this process sees, and the topology of their links
//! kernels   the kernels: source, compilation, choice of the algorithm and the grid
//! launch    loads and launches the kernels over the ranks' shared memory
//! ```
//! [`disco_ccl::p2p`] allocates the shared memory and exchanges it between the ranks.

pub mod kernels;
mod launch;
mod nvml;
mod survey;

use disco_ccl::p2p::Vendor;
pub use disco_ccl::p2p::{
    BusId, Decision, Mesh, P2pFastPath, P2pStream, RANKS, SLOTS, Site, Survey, Topology, Workspace, host,
};
pub use launch::readiness;
pub use nvml::mesh;
pub use survey::{site, topology};

/// The functions for NVIDIA GPUs that [`disco_ccl::p2p`] calls.
pub const VENDOR: Vendor = Vendor { links: mesh, check: launch::check_options, kernels: launch::prepare };
