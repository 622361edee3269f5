//! Serving as a worker of TVM's session of processes.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::channel::Notice;
use disco_core::error::Failure;
use disco_core::shared_memory::Arena;
use disco_core::{Error, Link, Result, WorkerConfig, WorkerId, World};

use rustix::event::{PollFd, PollFlags};

use super::endpoint::{Endpoint, report};
use super::late::Late;
use crate::remote::environment;
use crate::remote::reactor::poll;
use crate::remote::terminal;

/// The place of a worker in a session of TVM, as TVM passes it to the process of the worker.
#[allow(clippy::exhaustive_structs, reason = "the command line of TVM's worker processes")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The id of the worker, from 1: worker 0 is a thread of TVM's controller.
    pub worker: u32,
    /// Number of workers, with worker 0.
    pub workers: u32,
    /// Number of groups of TVM's workers.
    pub groups: u32,
    /// Descriptor with commands.
    pub input: u32,
    /// Descriptor for replies.
    pub output: u32,
}

impl Place {
    /// Environment variable with a place: `tvm` and five numbers, separated by spaces.
    pub const VARIABLE: &str = crate::remote::processes::VARIABLE;
    /// What a place begins with.
    pub const PREFIX: &str = "tvm ";

    /// Takes the place out of the environment, if the variable has one. Processes that this one starts don't get it.
    ///
    /// # Errors
    /// The place does not have five numbers.
    #[allow(clippy::disallowed_methods, reason = "a variable of the environment")]
    pub fn take() -> Option<Result<Self>> {
        let text = env::var_os(Self::VARIABLE)?.into_string().ok()?;
        let numbers = text.strip_prefix(Self::PREFIX)?;
        environment::take(Self::VARIABLE);
        let refused =
            || Error::invalid(format!("{}: `{text}` is not `tvm ID WORKERS GROUPS INPUT OUTPUT`", Self::VARIABLE));
        let numbers: Option<Vec<u32>> = numbers.split(' ').map(|number| number.parse().ok()).collect();
        Some(match numbers.as_deref() {
            Some(&[worker, workers, groups, input, output]) => Ok(Self { worker, workers, groups, input, output }),
            _ => Err(refused()),
        })
    }

    /// The text for [`VARIABLE`](Self::VARIABLE).
    pub fn text(&self) -> String {
        let Self { worker, workers, groups, input, output } = self;
        format!("{}{worker} {workers} {groups} {input} {output}", Self::PREFIX)
    }
}

/// Serves as a worker of TVM's session of processes until TVM's controller closes the connection. `run` gets the id in
/// this program's world, which has all workers of the session but TVM's worker 0, in one group.
///
/// # Errors
/// The place is not one of a worker of this program; a descriptor is not open; the error of `run`.
pub fn serve<F>(place: &Place, run: F) -> Result<()>
where
    F: FnOnce(WorkerId, WorkerConfig, Endpoint) -> Result<()>,
{
    let Place { worker, workers, .. } = *place;
    if !(1..workers).contains(&worker) {
        return Err(Error::invalid(format!(
            "worker {worker} of {workers} of a session of TVM: worker 0 is a thread of TVM's controller, so the id must be \
             1 to {}",
            workers.saturating_sub(1)
        )));
    }
    let config = WorkerConfig::new(World::new(workers as usize - 1, 1)?);
    let arena = Arena::new(config.world.per_node())?;
    let theirs = WorkerId::new(worker);
    let late = Arc::new(Late::default());
    let link = Link::new(late.clone(), late.clone(), Activity::default(), {
        let late = late.clone();
        move |notice| {
            if let Notice::Failed { failure, .. } = notice {
                report(&Failure { worker: theirs, ..(*failure).clone() });
                late.notify(failure);
            }
        }
    });
    let link = Arc::new(link.in_arena(arena));
    late.install(&link)?;
    let (input, output) = (descriptor(place.input, false)?, descriptor(place.output, true)?);
    let served = watch(descriptor(place.input, false)?, theirs)?;
    let endpoint = Endpoint::new((theirs, FIRST), input, output, link, config.value_limit).recovering();
    let result = run(WorkerId::new(worker - 1), config, endpoint);
    served.store(true, Ordering::Release);
    result
}

/// How long a worker may be inside a function after its controller has closed the connection.
const ORPHAN_GRACE: Duration = Duration::from_secs(4);

/// Kills this process if the worker still runs some time after its controller has closed the connection. The worker sets
/// the flag when it has ended.
///
/// # Errors
/// A thread can't be started.
fn watch(input: File, worker: WorkerId) -> Result<Arc<AtomicBool>> {
    let served = Arc::new(AtomicBool::new(false));
    let watch = {
        let served = served.clone();
        move || {
            // Only the end of the connection is an event.
            while !poll(&mut [PollFd::new(&input, PollFlags::empty())], Duration::from_secs(3600)) {}
            thread::sleep(ORPHAN_GRACE);
            if !served.load(Ordering::Acquire) {
                let text = format!("{worker} is inside a function, and TVM's controller has ended: killed");
                terminal::print("disco", true, text.as_bytes());
                _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
        }
    };
    let started = thread::Builder::new().name("disco-tvm-watch".into()).spawn(watch);
    started.map_err(|error| Error::system(format!("{worker}: its watching thread can't be started"), error))?;
    Ok(served)
}

/// TVM's id of worker 0 of this program in a session of processes.
pub(super) const FIRST: WorkerId = WorkerId::new(1);

/// A duplicate of an inherited descriptor, which must be a pipe if its number is above 2.
fn descriptor(number: u32, writes: bool) -> Result<File> {
    let duplicate = match number {
        0 => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        1 => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        2 => io::stderr().as_fd().try_clone_to_owned().map(File::from),
        _ => File::options().read(!writes).write(writes).open(format!("/proc/self/fd/{number}")),
    };
    let what = if writes { "replies" } else { "commands" };
    duplicate.map_err(|error| {
        Error::system(format!("descriptor {number}, for {what} of TVM's session, is not an open pipe"), error)
    })
}
