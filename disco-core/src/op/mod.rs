//! The operations of a communicator, as data.

mod arguments;
mod check;
mod claim;
mod reduction;
mod table;

pub(crate) use arguments::signature;
pub use check::{check_group, check_host};
pub use claim::Claims;
pub use reduction::Reduction;
pub use table::{Op, OpKind};
