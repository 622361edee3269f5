//! The operations of a communicator, as data.

mod arguments;
mod check;
mod claim;
mod reduction;
mod registered;
mod steps;
mod table;

pub(crate) use arguments::signature;
pub use check::{check_host, check_ops};
pub use claim::Claims;
pub use reduction::Reduction;
pub(crate) use registered::check_registered;
#[doc(hidden)]
pub use registered::merge_elements;
pub use registered::{Merge, ReductionEntry};
pub use steps::{Steps, has_custom, run_in_steps};
pub use table::{Op, OpKind};
