//! The interface between the suite and a backend or a kind of session.

use std::fmt::Debug;
use std::time::Duration;

use disco_core::{Result, Session, Unavailable, World, backend};

/// One backend in one kind of session.
pub trait Harness: Debug + Send + Sync {
    /// The prefix of the names of the checks: `local`.
    fn name(&self) -> &str;

    /// The backend for `init_ccl`.
    fn backend(&self) -> &str;

    /// The worlds in which the suite runs, smallest first.
    fn worlds(&self) -> Vec<World>;

    /// The device of each worker, for `init_ccl`. If empty, worker i gets device i.
    fn devices(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Starts a session. The suite calls `init_ccl`.
    ///
    /// # Errors
    /// Errors of the start.
    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>>;

    /// Whether results of arbitrary numbers are bit-identical across ranks and runs, and min and max of NaN are NaN.
    /// Otherwise results are compared with a tolerance that depends on the dtype and the number of ranks.
    fn is_exact(&self) -> bool {
        false
    }

    /// Whether the backend itself detects ranks that call different operations, also without the check of the session.
    fn detects_mismatches(&self) -> bool {
        false
    }

    /// Whether ranks that wait for a rank get [`Error::Lost`](disco_core::Error::Lost) once that rank drops its
    /// communicator. Otherwise they must get any error, such as that of their deadline.
    fn detects_dropped_peers(&self) -> bool {
        false
    }

    /// Timeout of one check in one world; 2 minutes by default. Only a broken backend reaches it, which may ignore the
    /// deadline of collectives. After a failure of one rank, the other ranks must return within a twelfth of it.
    fn check_timeout(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Checks that the backend can be used on this machine.
    ///
    /// # Errors
    /// It can't be used.
    fn probe(&self) -> Result<(), Unavailable> {
        match backend::find(self.backend()) {
            Ok(backend) => backend.probe().map(drop),
            Err(disco_core::Error::Unavailable(absent)) => Err(absent),
            Err(other) => Err(Unavailable::new(format!("backend `{}`: {other}", self.backend()))),
        }
    }
}

/// The requirements of a check on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionSpec {
    /// Workers and groups.
    pub world: World,
    /// Whether ranks compare their calls before each collective.
    pub check: bool,
    /// Limit for one collective.
    pub collective_deadline: Duration,
}

impl SessionSpec {
    /// A session of this world without checks, with a collective deadline of 60 s.
    pub fn new(world: World) -> Self {
        Self { world, check: false, collective_deadline: Duration::from_secs(60) }
    }
}
