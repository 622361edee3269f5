//! The flight recorders of a session's workers in a file, whenever the program gets SIGUSR1.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use disco_core::env::Variable;
use disco_core::session::{LaneSession, Recordings};
use disco_core::status::Status;
use disco_core::{Error, Result};
use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::{Handle, Signals};

use crate::timeline::file;

/// The variable that names the file.
const VARIABLE: &str = "DISCO_DUMP";
/// Time that the records of workers on other machines have to arrive.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes dumps until it is dropped.
struct Dumps(Handle);

impl Drop for Dumps {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Makes SIGUSR1 write the records of the session's workers to the file that `DISCO_DUMP` names, if any, until the session
/// ends. Further signals write `-2`, `-3` and so on before the ending of the name.
///
/// # Errors
/// The system refuses the signal handler or the thread.
pub(crate) fn attach(session: &LaneSession) -> Result<()> {
    let Some(path) = Variable::read(VARIABLE).path() else { return Ok(()) };
    let refused = |error: io::Error| Error::system("SIGUSR1 can't be handled", error);
    // The handler itself writes a byte to a socket; the thread does the rest.
    let mut signals = Signals::new([SIGUSR1]).map_err(refused)?;
    let (handle, observer) = (signals.handle(), session.observer());
    let dump = move || {
        for _ in &mut signals {
            let Some((workers, status)) = observer.recordings(usize::MAX, LIMIT).zip(observer.status()) else { return };
            write(&file::next(&path), &status, workers);
        }
    };
    thread::Builder::new().name("disco-dump".into()).spawn(dump).map_err(refused)?;
    session.attach(Dumps(handle));
    Ok(())
}

/// Makes SIGUSR1 harmless for this process if `DISCO_DUMP` is set: for workers and nodes, which get a signal to the
/// program's process group, too, and for the program before its session has started.
pub(crate) fn ignore_signal() {
    if Variable::read(VARIABLE).path().is_some()
        && let Err(error) = signal_hook::flag::register(SIGUSR1, Arc::new(AtomicBool::new(false)))
    {
        tracing::warn!(%error, "SIGUSR1 would end this process");
    }
}

fn write(path: &Path, status: &Status, workers: Recordings) {
    let text = match file::trace(status, None, workers).write(path) {
        Ok(()) => format!("the flight recorders are in {0}; `disco trace explain {0}` shows them", path.display()),
        Err(error) => format!("no flight recorder is written: {}", file::with_causes(&error)),
    };
    disco_core::tell(format_args!("disco: {text}"));
}
