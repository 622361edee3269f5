//! Faults of nodes: their kinds, and how many there were.

use std::fmt;
use std::fs;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use disco::{Error, Result, WorkerContext};
use rustix::net::{self, AddressFamily, Shutdown, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

disco::register_function!("soak.cut", cut);

/// How many nodes were killed, stopped and cut off while ranks on several nodes used the backend `tcp`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    kills: u64,
    stops: u64,
    cuts: u64,
}

/// A fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Kill,
    Stop,
    Cut,
}

static FAULTS: Mutex<Faults> = Mutex::new(Faults { kills: 0, stops: 0, cuts: 0 });

impl Faults {
    /// Those so far.
    pub(crate) fn so_far() -> Self {
        *FAULTS.lock().unwrap()
    }

    pub(crate) fn count(self) -> u64 {
        self.kills + self.stops + self.cuts
    }

    /// Counts a fault, after which the session was right.
    pub(crate) fn add(fault: Fault) {
        let mut faults = FAULTS.lock().unwrap();
        *match fault {
            Fault::Kill => &mut faults.kills,
            Fault::Stop => &mut faults.stops,
            Fault::Cut => &mut faults.cuts,
        } += 1;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kills, {} stops and {} cuts of nodes", self.kills, self.stops, self.cuts)
    }
}

/// Ends all connections of the process of one worker after some milliseconds, while the worker goes on.
fn cut(ctx: &mut WorkerContext, worker: u32, milliseconds: u64) -> Result<()> {
    if ctx.worker() == worker.into() {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(milliseconds));
            end_connections().expect("the connections of this process can be ended");
        });
    }
    Ok(())
}

fn end_connections() -> Result<()> {
    let failed = |error| Error::system("the connections of this process", error);
    let process = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed)?;
    let fds = fs::read_dir("/proc/self/fd").map_err(|error| Error::system("/proc/self/fd", error))?;
    let fds: Vec<RawFd> = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse().ok()).collect();
    for fd in fds {
        // A descriptor may be closed by now.
        let Ok(socket) = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) else { continue };
        let is_tcp = matches!(sockopt::socket_domain(&socket), Ok(AddressFamily::INET | AddressFamily::INET6));
        if is_tcp && sockopt::socket_acceptconn(&socket) == Ok(false) {
            _ = net::shutdown(&socket, Shutdown::Both);
        }
    }
    Ok(())
}
