//! How ranks get their communicator.

use std::env;
use std::sync::Arc;

use disco_core::{Abort, Attendance, DeviceKind, Error, Rendezvous, Result, Seat};

use crate::abi::UniqueId;
use crate::communicator::Communicator;
use crate::init::Init;
use crate::library::Library;
use crate::meeting::Meeting;
use crate::queue::Queue;
use crate::shared_comm::SharedComm;

/// The library's own variable, which overrules a communicator's configuration.
const BLOCKING_VARIABLE: &str = "NCCL_COMM_BLOCKING";

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
        let id = id.map_err(|_| Error::protocol(format!("{}: that is no place to meet", self.backend())))?;
        let (rank, size, deadline) = (seat.rank.index(), seat.world.size(), seat.connect_deadline);
        let handle = SharedComm::new(self, runtime.clone());
        seat.link.on_abort(&(handle.clone() as Arc<dyn Abort>));
        if !self.blocks()? && env::var_os(BLOCKING_VARIABLE).is_some_and(|value| value == "1") {
            let why = "makes calls wait that Disco can't interrupt: unset it";
            return Err(Error::invalid(format!("{}: {BLOCKING_VARIABLE}=1 {why}", self.backend())));
        }
        runtime.make_current()?;
        let meeting = Meeting::new(seat.link.store(), &id);
        meeting.check_devices(self, &runtime, (rank, size), deadline)?;
        let operation_deadline = seat.deadline;
        Init { library: self, runtime: &runtime, handle: &handle, id, rank, size, deadline, operation_deadline }
            .run()?;
        let attendance = Attendance::new(seat.link.store(), meeting.name().to_owned(), rank, size);
        Communicator::new((self, runtime, handle), (rank, size), seat.deadline, meeting, attendance)
    }
}
