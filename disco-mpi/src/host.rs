//! Ranks that a launcher has started. Rank 0 is the process of the controller. It invites the other ranks to its
//! sessions, and tells them when it ends.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::process;
use std::ptr;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Error, Result};

use crate::abi::Abi;
use crate::connect;
use crate::flag::{abort_all, is_finished, mark_unfinished};
use crate::invitation::{MESSAGE_BYTES, Message, SessionInvitation};
use crate::launcher;
use crate::library::{self, Installed, Mpi};
use crate::machine::{self, Machine, RECORD_BYTES};

/// Tag of the messages from rank 0.
const INVITATION_TAG: c_int = 2;
/// Polls of a request before an idle rank sleeps between polls.
const POLLS_BEFORE_SLEEP: u32 = 1000;
/// Interval of the later polls.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Limit for the exchange of the ranks' machines.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long `MPI_Finalize` may take after an operation was left pending, which it may wait for for ever.
const UNFINISHED_FINALIZE_GRACE: Duration = Duration::from_secs(5);
/// How long `MPI_Finalize` may take otherwise. It does not return if a rank has died or can't be reached.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(30);

/// This process as a rank; set by [`Host::enter`].
static HOST: OnceLock<Result<Option<Host>>> = OnceLock::new();

/// This process as a rank of MPI's world.
pub struct Host {
    rank: usize,
    size: usize,
    /// The process id. A forked child has another one and must not finalise MPI.
    process: u32,
    /// The machine of each rank.
    machines: Vec<Machine>,
    world: &'static dyn World,
}

/// MPI's world, independent of the ABI.
trait World: Send + Sync {
    /// Sends a message. Returns whether MPI has sent it within `limit`.
    fn send(&self, to: usize, message: [u8; MESSAGE_BYTES], limit: Duration) -> Result<bool>;
    fn receive(&self, message: &mut [u8; MESSAGE_BYTES]) -> Result<()>;
    fn finalize(&self) -> Result<()>;
    /// Whether MPI is not finalised yet.
    fn is_live(&self) -> bool;
}

struct Launched<A: Abi> {
    mpi: &'static Installed<A>,
    /// For messages from rank 0 only.
    comm: A::Handle,
}

impl Host {
    /// This process as a rank, if a launcher has started it as one of several; none otherwise.
    ///
    /// If the program has not initialised MPI, this function does, and MPI is finalised when the process of rank 0
    /// ends. If the program has initialised MPI, its own `MPI_Finalize` on rank 0 tells the other ranks that rank 0
    /// ends.
    ///
    /// # Errors
    /// No MPI library was found; errors of MPI.
    pub fn enter() -> Result<Option<&'static Self>> {
        HOST.get_or_init(|| {
            if launcher::is_launched() { library::with!(Mpi::get()?, mpi => Launched::enter(mpi)) } else { Ok(None) }
        })
        .as_ref()
        .map(Option::as_ref)
        .map_err(Clone::clone)
    }

    /// Why this process, which a launcher has started as one of several, is no rank of MPI.
    pub(crate) fn failure() -> Option<Error> {
        HOST.get()?.as_ref().err().cloned()
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The name of a rank in texts: its number and the name of its machine.
    pub fn name(&self, rank: usize) -> String {
        let machine = self.machines.get(rank).map_or("", Machine::name);
        format!("rank {rank} on {machine}")
    }

    /// The number of machines of these ranks, if each machine has an equal number of consecutive ranks; otherwise the number
    /// of ranks. Containers count as separate machines if their processes can't reach each other.
    pub fn machines(&self, ranks: Range<usize>) -> usize {
        machine::count(self.machines.get(ranks).unwrap_or_default())
    }

    /// Sends an invitation to another rank. Rank 0 calls this.
    ///
    /// # Errors
    /// The text is too long; the rank does not exist; MPI does not send the message within `limit`; errors of MPI.
    pub fn send(&self, rank: usize, message: SessionInvitation, limit: Duration) -> Result<()> {
        if !(1..self.size).contains(&rank) {
            return Err(Error::invalid(format!(
                "mpi: no invitation can be sent to rank {rank}: the ranks are 1 to {}",
                self.size - 1
            )));
        }
        self.send_message(rank, &Message::Invitation(message), limit)
    }

    fn send_message(&self, rank: usize, message: &Message, limit: Duration) -> Result<()> {
        if self.world.send(rank, message.write()?, limit)? {
            Ok(())
        } else {
            let state = format!("MPI can't reach {}", self.name(rank));
            Err(Error::Deadline { operation: "mpi: sending an invitation to a rank".into(), after: limit, state })
        }
    }

    /// Waits for the next invitation of rank 0; none once rank 0 ends. The wait has no limit, because the launcher ends
    /// all ranks if rank 0 dies.
    ///
    /// # Errors
    /// Errors of MPI; a message of another version of the program.
    pub fn next_invitation(&self) -> Result<Option<SessionInvitation>> {
        let mut message = [0; MESSAGE_BYTES];
        self.world.receive(&mut message)?;
        match Message::read(&message)? {
            Message::Invitation(message) => Ok(Some(message)),
            Message::End(is_finished) => {
                if !is_finished {
                    mark_unfinished();
                }
                Ok(None)
            }
        }
    }

    /// Finalises MPI, together with all other ranks, after the last invitation and before the process of this rank
    /// ends.
    ///
    /// If an operation was left pending, MPI may wait for it for ever: this function then returns after 5 s, and the
    /// launcher may report an error. Otherwise a finalisation that takes 30 s ends the process.
    ///
    /// # Errors
    /// A worker thread does not leave MPI; errors of MPI.
    pub fn finish(&self) -> Result<()> {
        if !abort_all() {
            return Err(Error::state(
                "mpi: MPI was not finalised, because a worker thread has not returned from MPI within 1s",
            ));
        }
        if is_finished() {
            // MPI requires that the thread that has initialised it finalises it.
            let _watch = self.watch_finalisation();
            return self.world.finalize();
        }
        let (world, (sender, receiver)) = (self.world, mpsc::channel());
        thread::spawn(move || sender.send(world.finalize()));
        receiver.recv_timeout(UNFINISHED_FINALIZE_GRACE).unwrap_or(Ok(()))
    }

    /// Starts a thread that ends the process unless the returned sender is dropped within [`FINALIZE_TIMEOUT`].
    fn watch_finalisation(&self) -> mpsc::Sender<()> {
        let (watch, watched) = mpsc::channel();
        let why = format!(
            "disco: {}: MPI_Finalize has not returned within {FINALIZE_TIMEOUT:?}: a rank has died or can't be reached",
            self.name(self.rank)
        );
        let end = move || {
            if watched.recv_timeout(FINALIZE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                disco_core::tell(why);
                // SAFETY: `fflush` may be called at any time; null means all streams.
                unsafe { fflush(ptr::null_mut()) };
                // SAFETY: `_exit` may be called at any time.
                unsafe { _exit(1) };
            }
        };
        if let Err(error) = thread::Builder::new().name("disco-finalize".into()).spawn(end) {
            tracing::warn!(%error, "no thread could be started that limits the time of MPI_Finalize");
        }
        watch
    }

    /// Tells the other ranks that rank 0 ends.
    fn end(&self) -> Result<()> {
        abort_all();
        let (end, limit) = (Message::End(is_finished()), Instant::now() + UNFINISHED_FINALIZE_GRACE);
        let left = || limit.saturating_duration_since(Instant::now());
        // All ranks are told, even if sending to one of them fails.
        (1..self.size).map(|rank| self.send_message(rank, &end, left())).fold(Ok(()), Result::and)
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn fflush(stream: *mut c_void) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Called at the end of rank 0's process, if this crate has initialised MPI. Only a failed allocation can panic here.
extern "C" fn at_exit() {
    let Some(Ok(Some(host))) = HOST.get() else { return };
    if host.process == process::id()
        && host.world.is_live()
        && let Err(error) = host.finish()
    {
        tracing::warn!(%error, "MPI was not finalised");
    }
}

/// Called at the beginning of `MPI_Finalize` on rank 0.
extern "C" fn at_finalize<H>(_: H, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    if let Some(Ok(Some(host))) = HOST.get()
        && let Err(error) = host.end()
    {
        tracing::warn!(%error, "not all ranks could be told that rank 0 ends");
    }
    0
}

extern "C" fn not_copied<H>(
    _: H,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
    is_copied: *mut c_int,
) -> c_int {
    // SAFETY: MPI passes a pointer to an integer for the result.
    unsafe { is_copied.write(0) };
    0
}

impl<A: Abi> Launched<A> {
    fn enter(mpi: &'static Installed<A>) -> Result<Option<Host>> {
        let is_ours = !mpi.about.is_initialized()?;
        if is_ours {
            connect::init(mpi, launcher::ranks_here())?;
        }
        let (rank, size) = mpi.rank_and_size(mpi.constants.comm_world)?;
        if size == 1 && launcher::ranks() > 1 {
            if is_ours {
                mpi.about.finalize()?;
            }
            return Err(Error::invalid(format!(
                "mpi: a launcher has started {} ranks, but {} sees only this one, so the launcher belongs to another MPI. Use \
                 {}, or set DISCO_BACKEND to a backend without MPI",
                launcher::ranks(),
                mpi.about.name(),
                mpi.about.launcher()
            )));
        }
        if size == 1 {
            return Ok(None);
        }
        // Before a communicator is made, which can't be interrupted.
        let machines = Self::locate(mpi, size)?;
        let mut comm = mpi.constants.comm_null;
        // SAFETY: the world is valid. All ranks have taken part in `locate` and make this call next.
        let code = unsafe { (mpi.table.comm_dup)(mpi.constants.comm_world, &mut comm) };
        mpi.about.check("MPI_Comm_dup", code)?;
        mpi.return_errors(comm)?;
        if rank == 0 {
            Self::call_at_end(mpi, is_ours)?;
        }
        let (process, world) = (process::id(), Box::leak(Box::new(Self { mpi, comm })));
        Ok(Some(Host { rank, size, process, machines, world }))
    }

    /// Gathers the machines of all ranks over MPI's world. All ranks make this call first. The error handler of the
    /// world stays as the program has set it.
    fn locate(mpi: &Installed<A>, size: usize) -> Result<Vec<Machine>> {
        let mut request = mpi.constants.request_null;
        let (count, byte) = (RECORD_BYTES as c_int, mpi.constants.byte);
        // Leaked, because a collective can't be cancelled: MPI may access the buffers after the timeout.
        let (mine, all) = (Machine::this().write().to_vec().leak(), vec![0; size * RECORD_BYTES].leak());
        let (from, to, comm) = (mine.as_ptr().cast(), all.as_mut_ptr().cast(), mpi.constants.comm_world);
        // SAFETY: both buffers are leaked, and are not accessed here until the request is done, below.
        let code = unsafe { (mpi.table.iallgather)(from, count, byte, to, count, byte, comm, &mut request) };
        mpi.about.check("MPI_Iallgather", code)?;
        if Self::wait(mpi, &mut request, Some(LOCATE_TIMEOUT))? {
            Ok(all.chunks_exact(RECORD_BYTES).map(Machine::read).collect())
        } else {
            let (operation, state) =
                ("mpi: exchanging the machines of the ranks", "some ranks have not called disco::init()");
            Err(Error::Deadline { operation: operation.into(), after: LOCATE_TIMEOUT, state: state.into() })
        }
    }

    /// Registers functions that tell the other ranks when rank 0 ends.
    fn call_at_end(mpi: &Installed<A>, is_ours: bool) -> Result<()> {
        let (mut key, none) = (0, ptr::null_mut());
        // SAFETY: both functions have the types that MPI expects, and are valid for the life of the process.
        let code = unsafe { (mpi.table.comm_create_keyval)(not_copied, at_finalize, &mut key, none) };
        mpi.about.check("MPI_Comm_create_keyval", code)?;
        // MPI_Finalize first frees the attributes of MPI_COMM_SELF, which calls `at_finalize`.
        // SAFETY: the key was made above.
        let code = unsafe { (mpi.table.comm_set_attr)(mpi.constants.comm_self, key, none) };
        mpi.about.check("MPI_Comm_set_attr", code)?;
        if is_ours {
            // SAFETY: `at_exit` has the type that `atexit` expects, and may be called at the end of the process.
            unsafe { atexit(at_exit) };
        }
        Ok(())
    }

    /// Waits until a request is done, for at most `limit`. Returns whether it is done.
    fn wait(mpi: &Installed<A>, request: &mut A::Handle, limit: Option<Duration>) -> Result<bool> {
        let (start, mut polls) = (Instant::now(), 0);
        loop {
            let mut done = 0;
            // SAFETY: the request was started, and its buffers are valid until it is done.
            let code = unsafe { (mpi.table.test)(request, &mut done, mpi.status_ignore()) };
            mpi.about.check("MPI_Test", code)?;
            if done != 0 {
                return Ok(true);
            }
            polls += 1;
            if polls > POLLS_BEFORE_SLEEP {
                if limit.is_some_and(|limit| start.elapsed() >= limit) {
                    mark_unfinished();
                    return Ok(false);
                }
                thread::sleep(POLL_INTERVAL);
            }
        }
    }
}

impl<A: Abi> World for Launched<A> {
    fn send(&self, to: usize, message: [u8; MESSAGE_BYTES], limit: Duration) -> Result<bool> {
        let (mpi, mut request) = (self.mpi, self.mpi.constants.request_null);
        let message = ManuallyDrop::new(Box::new(message));
        let (data, bytes, byte) = (message.as_ptr().cast(), MESSAGE_BYTES as c_int, mpi.constants.byte);
        // SAFETY: the message is freed only once the request is done, and leaked otherwise.
        let code =
            unsafe { (mpi.table.isend)(data, bytes, byte, to as c_int, INVITATION_TAG, self.comm, &mut request) };
        mpi.about.check("MPI_Isend", code)?;
        let is_done = Self::wait(mpi, &mut request, Some(limit))?;
        if is_done {
            drop(ManuallyDrop::into_inner(message));
        }
        Ok(is_done)
    }

    fn receive(&self, message: &mut [u8; MESSAGE_BYTES]) -> Result<()> {
        let (mpi, mut request) = (self.mpi, self.mpi.constants.request_null);
        let (data, bytes, byte) = (message.as_mut_ptr().cast(), MESSAGE_BYTES as c_int, mpi.constants.byte);
        // SAFETY: the buffer outlives the request, which is waited for below without a limit.
        let code = unsafe { (mpi.table.irecv)(data, bytes, byte, 0, INVITATION_TAG, self.comm, &mut request) };
        mpi.about.check("MPI_Irecv", code)?;
        Self::wait(mpi, &mut request, None).map(drop)
    }

    fn finalize(&self) -> Result<()> {
        self.mpi.about.finalize()
    }

    fn is_live(&self) -> bool {
        self.mpi.about.is_initialized().unwrap_or_default()
    }
}

disco_core::format_as!(Debug for Host, |it| "<rank {} of {} in process {}>", it.rank, it.size, process::id());
