//! How the ranks of a world get their communicator.

use std::env;
use std::sync::Arc;

use disco_core::{Abort, Attendance, ConnectParams, DeviceKind, Error, Rendezvous, Result};

use crate::abi::UniqueId;
use crate::communicator::Communicator;
use crate::init::Init;
use crate::library::Library;
use crate::meeting::Meeting;
use crate::queue::Queue;
use crate::shared_comm::SharedComm;

/// The library's variable that overrides `Config::blocking`.
const BLOCKING_VARIABLE: &str = "NCCL_COMM_BLOCKING";

impl Library {
    /// Makes the rendezvous of a new communicator: a unique id of the library.
    ///
    /// # Errors
    /// Errors of the library, for example if it finds no network interface.
    pub fn rendezvous(&self) -> Result<Rendezvous> {
        Rendezvous::new(self.unique_id()?.0)
    }

    /// Creates one rank's communicator on the stream of its queue. All ranks of the world call this function. The
    /// queue's device is of kind `kind`.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the ranks that are absent; [`Error::Aborted`]; [`Error::Invalid`]: two ranks are on
    /// one device; errors of the library.
    pub fn connect(
        &'static self,
        kind: DeviceKind,
        params: ConnectParams<'_>,
        at: &Rendezvous,
    ) -> Result<Communicator> {
        let runtime = Queue::of(params.queue, kind)?.runtime().clone();
        let id = at.as_bytes().try_into().map(UniqueId);
        let id = id.map_err(|_| {
            Error::protocol(format!("{}: the rendezvous is not a unique id of 128 bytes", self.backend()))
        })?;
        let (rank, size, deadline) = (params.rank.index(), params.world.size(), params.connect_deadline);
        let shared_comm = SharedComm::new(self, runtime.clone());
        params.link.on_abort(&(shared_comm.clone() as Arc<dyn Abort>));
        if !self.blocks() && env::var_os(BLOCKING_VARIABLE).is_some_and(|value| value == "1") {
            let why = "makes calls block in the library, where Disco can't interrupt them: unset it";
            return Err(Error::invalid(format!("{}: {BLOCKING_VARIABLE}=1 {why}", self.backend())));
        }
        runtime.make_current()?;
        let meeting = Meeting::new(params.link.store(), &id);
        meeting.check_devices(self, &runtime, (rank, size), deadline)?;
        let operation_deadline = params.deadline;
        Init {
            library: self,
            runtime: &runtime,
            shared_comm: &shared_comm,
            id,
            rank,
            size,
            deadline,
            operation_deadline,
        }
        .run()?;
        let attendance = Attendance::new(params.link.store(), meeting.name().to_owned(), rank, size);
        let activity = params.link.activity();
        if activity.has_timeline() {
            runtime.measure(activity);
        }
        Communicator::new((self, runtime, shared_comm), (rank, size), params.deadline, meeting, attendance)
    }
}
