//! GPUs of one machine that read and write each other's memory: which links there are between them, and sums over
//! these.
//!
//! ```text
//! nvml      NVML's functions, and a walk over the links that it knows
//! survey    the GPUs that this process sees, and what was decided of them
//! kernels   sums by kernels of ours, and barriers: the source, its compilation, which one to launch and how
//! launch    those that the driver has, over memory that ranks share
//! ```
//!
//! What ranks share, and how they come to it, is [`disco_ccl::p2p`]'s.

pub mod kernels;
mod launch;
mod nvml;
mod survey;

use disco_ccl::p2p::Vendor;
pub use disco_ccl::p2p::{
    BusId, Decision, Lane, Mesh, RANKS, SLOTS, Shortcut, Site, Survey, Topology, Workspace, host,
};
pub use launch::readiness;
pub use nvml::mesh;
pub use survey::{site, topology};

/// What ranks need to know of NVIDIA's devices to share memory.
pub const VENDOR: Vendor = Vendor { links: mesh, check: launch::check_options, kernels: launch::prepare };
