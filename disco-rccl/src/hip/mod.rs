//! AMD's device library, found at run time.
//!
//! ```text
//! table     its functions
//! library   the search, its versions, errors in its words
//! device    the device kind as the registry has it
//! stream    its calls, on one device with one stream on it
//! ```

mod device;
mod library;
mod stream;
mod table;

pub use device::Hip;
pub(crate) use device::details;
