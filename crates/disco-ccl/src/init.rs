//! Creates a communicator of the library.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use disco_core::{Error, Result};

use crate::abi::{Code, UniqueId};
use crate::blocking::Watchdog;
use crate::config::Config;
use crate::library::Library;
use crate::owned::OwnedComm;
use crate::polling;
use crate::runtime::{Runtime, Teardown};
use crate::shared_comm::SharedComm;
use crate::table::CommInitRankConfig;
use crate::teardown::AbortedComm;

/// The parameters of one rank for the creation of a communicator.
#[derive(Clone, Copy)]
pub(crate) struct Init<'a> {
    pub(crate) library: &'static Library,
    pub(crate) runtime: &'a Arc<Runtime>,
    /// Gets the communicator.
    pub(crate) shared_comm: &'a SharedComm,
    pub(crate) id: UniqueId,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// Time limit of the creation.
    pub(crate) deadline: Duration,
    /// Time limit of each later operation of the communicator.
    pub(crate) operation_deadline: Duration,
}

/// A communicator that its thread sends to the rank. Drop aborts the communicator if the rank has not taken it.
struct UndeliveredComm {
    library: &'static Library,
    runtime: Arc<Runtime>,
    comm: Option<OwnedComm>,
}

impl Init<'_> {
    /// Creates the communicator, together with all ranks that have the same unique id.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::Aborted`]; errors of the library.
    pub(crate) fn run(self) -> Result<()> {
        let made = match self.library.table.comm_init_rank_config {
            Some(comm_init_rank_config) => self.init(comm_init_rank_config),
            None => self.init_on_thread(),
        };
        made.inspect_err(|_| _ = self.shared_comm.abort_and_wait(Vec::new()))
    }

    fn init(self, comm_init_rank_config: CommInitRankConfig) -> Result<()> {
        const FUNCTION: &str = "ncclCommInitRankConfig";
        let (ranks, me, mut config) = (self.size as c_int, self.rank as c_int, Config::non_blocking());
        if self.library.blocks() {
            config = Config::blocking();
            self.shared_comm.set_blocking(Watchdog::start(self.deadline.min(self.operation_deadline))?, self.deadline);
        }
        let state = || "all ranks have arrived, but the library has not connected them".to_owned();
        let code = self.shared_comm.create(|_, output| {
            // SAFETY: `create` passes a valid output, and `config` has the layout of its `version`.
            unsafe { comm_init_rank_config(output, ranks, self.id, me, &mut config) }
        });
        let code = code.map_err(|error| match error {
            Error::Deadline { after, .. } => Error::Deadline { operation: FUNCTION.to_owned(), after, state: state() },
            error => error,
        })?;
        self.library.check_launched(FUNCTION, code)?;
        polling::wait(
            || self.shared_comm.check(),
            || self.shared_comm.is_settled(),
            |waited| self.check(FUNCTION, waited, state),
        )?;
        if let Some(blocking) = self.shared_comm.blocking() {
            blocking.set_deadline(self.operation_deadline);
        }
        self.shared_comm.finish_creation().map(drop)
    }

    /// For libraries that can only block: calls the library on a separate thread. The thread is abandoned at the
    /// deadline.
    fn init_on_thread(self) -> Result<()> {
        const FUNCTION: &str = "ncclCommInitRank";
        let (made, making) = mpsc::channel();
        let (library, runtime, id) = (self.library, self.runtime.clone(), self.id);
        let (ranks, me) = (self.size as c_int, self.rank as c_int);
        let work = move || {
            let mut comm = ptr::null_mut();
            let code = runtime.make_current().map(|()| {
                // SAFETY: `comm` is a valid output until the call returns.
                unsafe { (library.table.comm_init_rank)(&mut comm, ranks, id, me) }
            });
            let comm = matches!(code, Ok(Code::SUCCESS)).then(|| OwnedComm::new(comm));
            // The waiting thread may have given up at its deadline.
            _ = made.send((code, UndeliveredComm { library, runtime, comm }));
        };
        let spawned = thread::Builder::new().name("disco-ccl-init".into()).spawn(work);
        spawned.map_err(|error| Error::system(format!("no thread for {FUNCTION}"), error))?;
        let take = || match making.try_recv() {
            Ok((code, mut undelivered)) => {
                library.check(FUNCTION, code?)?;
                undelivered.comm.take().map_or(Ok(()), |comm| self.shared_comm.set(comm)).map(|()| true)
            }
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => {
                Err(Error::state(format!("{FUNCTION}: the thread of the call has panicked")))
            }
        };
        let version = library.version();
        let state =
            || format!("the call has not returned and stays on its thread, because {version} can't interrupt it");
        polling::wait(|| self.shared_comm.check(), take, |waited| self.check(FUNCTION, waited, state))
    }

    fn check(self, function: &str, waited: Duration, state: impl Fn() -> String) -> Result<()> {
        if waited > self.deadline {
            Err(Error::Deadline { operation: function.to_owned(), after: self.deadline, state: state() })
        } else {
            Ok(())
        }
    }
}

impl Drop for UndeliveredComm {
    fn drop(&mut self) {
        if let Some(comm) = self.comm.take() {
            let aborted = AbortedComm::new(comm, Vec::new(), self.runtime.hold());
            drop(Teardown::abort(self.library, &self.runtime, aborted));
        }
    }
}
