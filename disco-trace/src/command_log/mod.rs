//! Command logs: the commands of a session, for `disco replay`.
//!
//! [`Recorder`] writes a log while the program runs, [`Reader`] reads it. A log has one JSON object a line, and is
//! compressed if its name ends with `.gz`. A log that was cut off can be read up to the cut. In order:
//!
//! ```text
//! {"session":{"format":"disco commands 1",..}}      the head: program, kind of session, numbers of workers and groups
//! {"command":{"number":7,"time_ns":..,"kind":"call","function":"train.step","register":3,"args":[..],"freed":[2]}}
//! {"freed":[3,4]}                                   registers that the next command frees, if they are too many for one line
//! {"wait":{"number":9,"time_ns":..,"thread":0}}     the wait for the replies to command 9 has ended
//! {"worker":{"worker":0,"replaced":0}}              worker 0 has executed the calls that follow
//! {"call":{"number":7,"ns":1200,"ops":[..]}}        worker 0 has executed command 7, with these operations inside
//! {"end":{"time_ns":..,"commands":9}}               the last line, with the failure of the session if it had one
//! ```
//!
//! A call is written some time after it has ended, between other lines, or at the end of the session. A call of more than
//! 8192 operations has several lines. No line is longer than 4 MiB: a command loses its arguments first, and a wait its
//! replies.
//!
//! Times are nanoseconds from the start of the recording, on the controller's clock. Fields without content are left out.
//! A log has only kinds, dtypes, shapes and sizes of tensors, bytes, objects and replies ([`Described`]). It does have the
//! numbers and the strings of up to 1 KiB that are arguments, the names of functions, and the texts of errors.

mod calls;
mod described;
mod line;
mod reader;
mod recorder;
mod writer;

pub use described::Described;
pub use line::{Call, Command, CommandKind, End, Head, Line, Operation, OperationScope, Wait, Worker};
pub use reader::Reader;
pub use recorder::Recorder;

/// The format of a log, in its head.
const FORMAT: &str = "disco commands 1";
