//! What devices of one machine are to each other: whether kernels of our own can reach their peers' memory.
//!
//! ```text
//! bus         where a device is on the PCI bus, which all processes of a machine call alike
//! topology    links between devices, and the shapes that kernels are written for
//! decision    which shape a group has, and why; what a test wants instead
//! survey      all devices of a kind on this machine
//! rendezvous  how ranks agree on it, and hand each other handles of their memory
//! ```
//!
//! No vendor's library is asked here: each vendor's crate walks its links and hands in where they end.

mod bus;
mod decision;
mod rendezvous;
mod survey;
mod topology;

pub use bus::BusId;
pub use decision::Decision;
pub use rendezvous::{Found, Introduction, Offer, Rendezvous};
pub use survey::{Site, Survey, host};
pub use topology::{Ends, Mesh, RANKS, Topology};
