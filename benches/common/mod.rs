//! The session that benchmarks run on.

use disco::session::LaneSession;
use disco::{Session, Settings};

/// As the environment says, with 4 workers by default.
pub(crate) fn session() -> (LaneSession, usize) {
    let mut settings = Settings::from_env().expect("DISCO_* variables make sense");
    if std::env::var_os("DISCO_WORKERS").is_none() {
        settings.workers = 4;
    }
    let session = settings.builder().start().expect("threads can be started");
    let workers = session.world().size();
    (session, workers)
}
