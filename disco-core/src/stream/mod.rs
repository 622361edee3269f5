//! The path of a command: the order of commands, the frames that lanes get, and the waits for replies. A reader who knows these
//! files knows how a call works; that workers are replaced, or change in number, is the business of
//! [`session`](crate::session), which lies above.

mod args;
pub(crate) mod asking;
pub(crate) mod collecting;
pub(crate) mod command_stream;
mod deadline_watch;
mod deadlines;
mod dref;
mod explaining;
pub(crate) mod fleet;
mod functions;
pub(crate) mod lane_set;
pub(crate) mod large;
pub(crate) mod order;
mod preparing;
pub(crate) mod reply_table;
mod sleepers;
mod ticker;
pub(crate) mod timeline;
mod waits;
mod worker_0;

pub use args::{Arguments, IntoArg, IntoArgs};
pub use collecting::Recordings;
pub use deadlines::Deadlines;
pub use dref::DRef;
pub use timeline::Timeline;
