//! The path of a command: the order of commands, the frames that lanes get, and the waits for replies. A reader who knows these
//! files knows how a call works; that workers are replaced, or change in number, is the business of
//! [`session`](crate::session), which lies above.
//!
//! ```text
//! command_stream   the order of commands, and what lanes get      asking        commands with replies
//!   order          numbers, registers, frames that are kept       waits         waits for replies and for capacity
//!   functions      the functions that were looked up              deadline_watch, ticker, sleepers   what ends and wakes waits
//! large, preparing large values, before the order ticket          worker_0      copies to and from worker 0
//! lane_set         the lanes, and who owns which worker           reply_table   replies, failures and losses that lanes report
//! fleet            whether workers take commands, who changes them
//! timeline, collecting, explaining                                records, and errors with a table of them
//! args, dref, deadlines                                           what programs pass
//! ```

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
