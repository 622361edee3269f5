//! The connections of a lane that starts.

use std::sync::{Arc, Mutex};

use disco_core::WorkerId;

use super::connection::Connection;
use crate::remote::output::Output;

/// The last line that each worker has written to its standard error.
pub(super) type LastLines = Arc<Mutex<Vec<(WorkerId, String)>>>;

/// The connections of a lane that starts.
pub(super) struct Opened {
    pub(super) connections: Vec<Connection>,
    pub(super) output: Option<Output>,
    pub(super) last_lines: LastLines,
}
