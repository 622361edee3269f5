//! Messages to the user of the program.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Writes a line to standard error in one piece, so that lines of several processes do not mix. A closed standard error
/// is no failure; `eprintln!` would panic.
pub fn tell(line: impl Display) {
    _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
