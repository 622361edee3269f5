//! What NCCL and RCCL share: one C interface, opened at run time.
//!
//! ```text
//! abi       types, codes and constants of the interface
//! config    how a communicator is to be made, as the library reads it
//! table     the functions, and since which version they are there
//! library   the search, the gate, the text of errors
//! ```
//!
//! Nothing here knows CUDA or HIP: who opens a [`Library`] says what it is called and where to look ([`Vendor`]).

pub mod abi;
mod config;
mod library;
mod table;

pub use config::Config;
pub use library::{Library, Vendor, Version};
pub use table::Table;
