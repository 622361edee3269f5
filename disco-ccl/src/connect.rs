//! How ranks get their communicator.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;

use disco_core::{Abort, Error, Rendezvous, Result, Roll, Seat};

use crate::abi::{Code, UniqueId};
use crate::communicator::Communicator;
use crate::config::Config;
use crate::ending;
use crate::handle::{Handle, Owned};
use crate::library::Library;
use crate::meeting::Meeting;
use crate::patience;
use crate::runtime::Runtime;

impl Library {
    /// Where the ranks of a new communicator will meet.
    ///
    /// # Errors
    /// The library finds no network to listen on.
    pub fn rendezvous(&self) -> Result<Rendezvous> {
        Rendezvous::new(self.unique_id()?.0)
    }

    /// One rank's communicator, with all others of its world, on the device and the stream of `runtime`.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming the ranks that did not come, [`Error::Aborted`]; [`Error::Invalid`] where two ranks have one
    /// device; the library's own.
    pub fn connect(&'static self, runtime: Arc<dyn Runtime>, seat: Seat<'_>, at: &Rendezvous) -> Result<Communicator> {
        let id = at.as_bytes().try_into().map(UniqueId);
        let id = id.map_err(|_| Error::invalid(format!("{}: that is no place to meet", self.backend())))?;
        let (rank, size) = (seat.rank.index(), seat.world.size());
        let handle = Handle::new(self, runtime.clone());
        seat.link.on_abort(&(handle.clone() as Arc<dyn Abort>));
        runtime.enter()?;
        let meeting = Meeting::new(seat.link.store(), &id);
        meeting.check_devices(self, &*runtime, (rank, size), seat.connect_deadline)?;
        init(self, &runtime, &handle, id, (rank, size), seat.connect_deadline)?;
        let roll = Roll::new(seat.link.store(), meeting.name().to_owned(), rank, size);
        Communicator::new((self, runtime, handle), (rank, size), seat.deadline, meeting, roll)
    }
}

/// Makes the communicator of a handle, with all ranks that have the same place to meet.
pub(crate) fn init(
    library: &'static Library,
    runtime: &Arc<dyn Runtime>,
    handle: &Arc<Handle>,
    id: UniqueId,
    (rank, size): (usize, usize),
    deadline: Duration,
) -> Result<()> {
    let (ranks, me) = (size as c_int, rank as c_int);
    let made = match library.table.comm_init_rank_config {
        Some(comm_init_rank_config) => {
            let mut config = Config::non_blocking();
            // SAFETY: the place is there, and the configuration is as the library reads it.
            let code = handle.make(|_, comm| unsafe { comm_init_rank_config(comm, ranks, id, me, &mut config) });
            let function = "ncclCommInitRankConfig";
            code.and_then(|code| library.check_launched(function, code)).and_then(|()| {
                let late = |waited| match waited > deadline {
                    true => {
                        Err(late(function, deadline, "the library has not connected the ranks, which have all come"))
                    }
                    false => Ok(()),
                };
                patience::wait(handle, || handle.is_settled(), late)
            })
        }
        None => init_aside(library, runtime, handle, id, (rank, size), deadline),
    };
    made.inspect_err(|_| {
        if let Some(comm) = handle.take() {
            ending::abort_and_wait(library, runtime, comm);
        }
    })
}

/// Where the library can only wait: on a thread of its own, which is left behind at the deadline.
fn init_aside(
    library: &'static Library,
    runtime: &Arc<dyn Runtime>,
    handle: &Arc<Handle>,
    id: UniqueId,
    (rank, size): (usize, usize),
    deadline: Duration,
) -> Result<()> {
    const FUNCTION: &str = "ncclCommInitRank";
    let (made, making) = mpsc::channel();
    let own = runtime.clone();
    let work = move || {
        let mut comm = ptr::null_mut();
        let code = own.enter().map(|()| {
            // SAFETY: the place is there.
            unsafe { (library.table.comm_init_rank)(&mut comm, size as c_int, id, rank as c_int) }
        });
        let comm = Owned(comm);
        if let Err(mpsc::SendError((Ok(Code::SUCCESS), comm))) = made.send((code, comm)) {
            // Nobody waits for it any more.
            ending::abort(library, &own, comm);
        }
    };
    thread::Builder::new()
        .name("disco-ccl-init".into())
        .spawn(work)
        .map_err(|error| Error::invalid(format!("no thread for {FUNCTION}: {error}")))?;
    let take = || match making.try_recv() {
        Ok((code, comm)) => {
            library.check(FUNCTION, code?)?;
            handle.make(|_, place| {
                *place = comm.0;
                Code::SUCCESS
            })?;
            Ok(true)
        }
        Err(TryRecvError::Empty) => Ok(false),
        Err(TryRecvError::Disconnected) => Err(Error::invalid(format!("{FUNCTION}: its thread has ended"))),
    };
    let late = |waited| match waited > deadline {
        true => {
            let version = library.version();
            Err(late(
                FUNCTION,
                deadline,
                &format!("it has not returned and is left on a thread; {version} can't be told to stop"),
            ))
        }
        false => Ok(()),
    };
    patience::wait(handle, take, late)
}

fn late(function: &str, after: Duration, state: &str) -> Error {
    Error::Deadline { operation: function.to_owned(), after, state: state.to_owned() }
}
