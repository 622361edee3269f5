//! The functions of a vendor's device library (CUDA, HIP) that this crate calls.
//!
//! ```text
//! calls   one device with one stream: memory, copies, events
//! graphs  captures of a stream, and graphs
//! timing  times of events
//! peers   memory that devices share
//! bus     the address of a device on the PCI bus
//! ```

mod bus;
mod calls;
mod graphs;
mod peers;
mod timing;

pub use bus::BusId;
pub use calls::{CopyKind, Driver};
pub(crate) use graphs::Exec;
pub use graphs::GraphFunctions;
pub use peers::{IpcHandleBytes, Peers, WORD_BYTES};
pub use timing::{EventHandle, TimingFunctions};
