//! How ranks get their communicator.

#![allow(unsafe_code)]

use std::env;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use disco_core::{Abort, DeviceKind, Error, Rendezvous, Result, Roll, Seat};

use crate::abi::{Code, UniqueId};
use crate::blocking::Watchdog;
use crate::communicator::Communicator;
use crate::config::Config;
use crate::ending::{Aborted, Ending};
use crate::handle::{Handle, Owned};
use crate::library::Library;
use crate::meeting::Meeting;
use crate::patience;
use crate::queue::Queue;
use crate::runtime::Runtime;
use crate::table::CommInitRankConfig;

/// One rank's part in making a communicator.
#[derive(Clone, Copy)]
pub(crate) struct Init<'a> {
    pub(crate) library: &'static Library,
    pub(crate) runtime: &'a Arc<Runtime>,
    /// What is to have it.
    pub(crate) handle: &'a Handle,
    pub(crate) id: UniqueId,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// How long all of this may take.
    pub(crate) deadline: Duration,
    /// How long one operation of the communicator may take.
    pub(crate) patience: Duration,
}

/// The library's own variable, which overrules a communicator's configuration.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

/// A communicator on its way from the thread that made it: aborted if it does not arrive.
struct Late {
    library: &'static Library,
    runtime: Arc<Runtime>,
    comm: Option<Owned>,
}

impl Library {
    /// Where the ranks of a new communicator will meet.
    ///
    /// # Errors
    /// The library finds no network to listen on.
    pub fn rendezvous(&self) -> Result<Rendezvous> {
        Rendezvous::new(self.unique_id()?.0)
    }

    /// One rank's communicator, with all others of its world, on the device and the stream of its queue, which is of this kind.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming the ranks that did not come, [`Error::Aborted`]; [`Error::Invalid`] where two ranks have one
    /// device; the library's own.
    pub fn connect(&'static self, kind: DeviceKind, seat: Seat<'_>, at: &Rendezvous) -> Result<Communicator> {
        let runtime = Queue::of(seat.queue, kind)?.runtime().clone();
        let id = at.as_bytes().try_into().map(UniqueId);
        let id = id.map_err(|_| Error::invalid(format!("{}: that is no place to meet", self.backend())))?;
        let (rank, size, deadline) = (seat.rank.index(), seat.world.size(), seat.connect_deadline);
        let handle = Handle::new(self, runtime.clone());
        seat.link.on_abort(&(handle.clone() as Arc<dyn Abort>));
        if !self.blocks() && env::var_os(BLOCKING).is_some_and(|value| value == "1") {
            let why = "makes calls wait that Disco can't interrupt: unset it";
            return Err(Error::invalid(format!("{}: {BLOCKING}=1 {why}", self.backend())));
        }
        runtime.enter()?;
        let meeting = Meeting::new(seat.link.store(), &id);
        meeting.check_devices(self, &runtime, (rank, size), deadline)?;
        let patience = seat.deadline;
        Init { library: self, runtime: &runtime, handle: &handle, id, rank, size, deadline, patience }.run()?;
        let roll = Roll::new(seat.link.store(), meeting.name().to_owned(), rank, size);
        Communicator::new((self, runtime, handle), (rank, size), seat.deadline, meeting, roll)
    }
}

impl Init<'_> {
    /// Makes the communicator of the handle, with all ranks that have the same place to meet.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Aborted`], the library's own.
    pub(crate) fn run(self) -> Result<()> {
        let made = match self.library.table.comm_init_rank_config {
            Some(comm_init_rank_config) => self.init(comm_init_rank_config),
            None => self.init_aside(),
        };
        made.inspect_err(|_| _ = self.handle.end_and_wait(Vec::new()))
    }

    fn init(self, comm_init_rank_config: CommInitRankConfig) -> Result<()> {
        const FUNCTION: &str = "ncclCommInitRankConfig";
        let (ranks, me, mut config) = (self.size as c_int, self.rank as c_int, Config::non_blocking());
        if self.library.blocks() {
            config = Config::blocking();
            self.handle.block(Watchdog::start(self.deadline.min(self.patience))?, self.deadline);
        }
        let state = || "the library has not connected the ranks, which have all come".to_owned();
        let code = self.handle.make(|_, place| {
            // SAFETY: the place is there, and the configuration is as the library reads it.
            unsafe { comm_init_rank_config(place, ranks, self.id, me, &mut config) }
        });
        let code = code.map_err(|error| match error {
            Error::Deadline { after, .. } => Error::Deadline { operation: FUNCTION.to_owned(), after, state: state() },
            error => error,
        })?;
        self.library.check_launched(FUNCTION, code)?;
        patience::wait(self.handle, || self.handle.is_settled(), |waited| self.check(FUNCTION, waited, state))?;
        if let Some(blocking) = self.handle.blocking() {
            blocking.set_deadline(self.patience);
        }
        self.handle.made().map(drop)
    }

    /// Where the library can only wait: on a thread of its own, which is left behind at the deadline.
    fn init_aside(self) -> Result<()> {
        const FUNCTION: &str = "ncclCommInitRank";
        let (made, making) = mpsc::channel();
        let (library, runtime, id) = (self.library, self.runtime.clone(), self.id);
        let (ranks, me) = (self.size as c_int, self.rank as c_int);
        let work = move || {
            let mut comm = ptr::null_mut();
            let code = runtime.enter().map(|()| {
                // SAFETY: the place is there.
                unsafe { (library.table.comm_init_rank)(&mut comm, ranks, id, me) }
            });
            let comm = matches!(code, Ok(Code::SUCCESS)).then(|| Owned::new(comm));
            // Nobody may wait for it any more.
            _ = made.send((code, Late { library, runtime, comm }));
        };
        let spawned = thread::Builder::new().name("disco-ccl-init".into()).spawn(work);
        spawned.map_err(|error| Error::invalid(format!("no thread for {FUNCTION}: {error}")))?;
        let take = || match making.try_recv() {
            Ok((code, mut late)) => {
                library.check(FUNCTION, code?)?;
                late.comm.take().map_or(Ok(()), |comm| self.handle.put(comm)).map(|()| true)
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(Error::invalid(format!("{FUNCTION}: its thread has ended"))),
        };
        let version = library.version();
        let state = || format!("it has not returned and is left on a thread; {version} can't be told to stop");
        patience::wait(self.handle, take, |waited| self.check(FUNCTION, waited, state))
    }

    fn check(self, function: &str, waited: Duration, state: impl Fn() -> String) -> Result<()> {
        match waited > self.deadline {
            true => Err(Error::Deadline { operation: function.to_owned(), after: self.deadline, state: state() }),
            false => Ok(()),
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        if let Some(comm) = self.comm.take() {
            let aborted = Aborted::new(comm, Vec::new(), self.runtime.hold());
            drop(Ending::abort(self.library, &self.runtime, aborted));
        }
    }
}
