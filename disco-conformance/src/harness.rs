//! What a new backend or a new kind of session adds to be judged. No cases.

use std::fmt::Debug;
use std::time::Duration;

use disco_core::{Result, Session, Unavailable, World, backend};

/// One backend in one kind of session.
pub trait Harness: Debug + Send + Sync {
    /// What the names of its checks start with: `local`.
    fn name(&self) -> &str;

    /// The backend for `init_ccl`.
    fn backend(&self) -> &str;

    /// The worlds that the suite runs in, smallest first.
    fn worlds(&self) -> Vec<World>;

    /// Each worker's device, for `init_ccl`; none: worker i takes device i.
    fn devices(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Starts a session. The suite calls `init_ccl`.
    ///
    /// # Errors
    /// The session's own.
    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>>;

    /// Results of arbitrary numbers are bit-identical across ranks and runs, and NaN wins in min and max. Otherwise they are
    /// compared within a tolerance by dtype and number of ranks.
    fn is_exact(&self) -> bool {
        false
    }

    /// Ranks that call different things are told so by the backend itself, not only where the session checks.
    fn detects_mismatches(&self) -> bool {
        false
    }

    /// How long one check may take in one world: reached by broken backends only, which need not honour the deadline of
    /// their collectives. 2 minutes.
    fn check_timeout(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Whether it can be used on this machine.
    ///
    /// # Errors
    /// Why not.
    fn probe(&self) -> Result<(), Unavailable> {
        match backend::find(self.backend()) {
            Ok(backend) => backend.probe().map(drop),
            Err(disco_core::Error::Unavailable(absent)) => Err(absent),
            Err(other) => Err(Unavailable::new(format!("backend `{}`: {other}", self.backend()))),
        }
    }
}

/// What a session must be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionSpec {
    /// Workers and groups.
    pub world: World,
    /// Ranks compare what they call before each collective.
    pub check: bool,
    /// How long one collective may take.
    pub collective_deadline: Duration,
}

impl SessionSpec {
    /// A plain session of this world.
    pub fn new(world: World) -> Self {
        Self { world, check: false, collective_deadline: Duration::from_secs(60) }
    }
}
