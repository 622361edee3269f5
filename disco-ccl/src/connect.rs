//! How ranks get their communicator.

use std::env;
use std::sync::Arc;

use disco_core::{Abort, Attendance, ConnectParams, DeviceKind, Error, Rendezvous, Result};

use crate::abi::UniqueId;
use crate::communicator::Communicator;
use crate::handle::Handle;
use crate::init::Init;
use crate::library::Library;
use crate::meeting::Meeting;
use crate::queue::Queue;

/// The library's own variable, which overrules a communicator's configuration.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

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
    pub fn connect(
        &'static self,
        kind: DeviceKind,
        params: ConnectParams<'_>,
        at: &Rendezvous,
    ) -> Result<Communicator> {
        let runtime = Queue::of(params.queue, kind)?.runtime().clone();
        let id = at.as_bytes().try_into().map(UniqueId);
        let id = id.map_err(|_| Error::protocol(format!("{}: that is no place to meet", self.backend())))?;
        let (rank, size, deadline) = (params.rank.index(), params.world.size(), params.connect_deadline);
        let handle = Handle::new(self, runtime.clone());
        params.link.on_abort(&(handle.clone() as Arc<dyn Abort>));
        if !self.blocks()? && env::var_os(BLOCKING).is_some_and(|value| value == "1") {
            let why = "makes calls wait that Disco can't interrupt: unset it";
            return Err(Error::invalid(format!("{}: {BLOCKING}=1 {why}", self.backend())));
        }
        runtime.enter()?;
        let meeting = Meeting::new(params.link.store(), &id);
        meeting.check_devices(self, &runtime, (rank, size), deadline)?;
        let patience = params.deadline;
        Init { library: self, runtime: &runtime, handle: &handle, id, rank, size, deadline, patience }.run()?;
        let roll = Attendance::new(params.link.store(), meeting.name().to_owned(), rank, size);
        Communicator::new((self, runtime, handle), (rank, size), params.deadline, meeting, roll)
    }
}
