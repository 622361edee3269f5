//! AMD's device library, found at run time.
//!
//! ```text
//! table     its functions
//! library   the search, its versions, errors in its words
//! device    the device kind as the registry has it
//! stream    its calls, on one device with one stream on it
//! peers     those for memory that several devices have
//! ```

mod device;
mod library;
mod peers;
mod stream;
mod table;

pub use device::Hip;
pub(crate) use device::details;
