//! TVM's compiled models and their weights, as methods of sessions and as worker functions.

mod session;
mod worker;

pub use session::Weights;
