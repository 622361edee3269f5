//! Ranks that a launcher has started, as workers to be: rank 0 is the controller's process, and invites the others to its
//! sessions by letters, one after the other, until it ends.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
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

/// The tag of letters.
const INVITATION_TAG: c_int = 2;
/// Looks at the letter box before a rank that is idle sleeps, and how long.
const POLLS_BEFORE_SLEEP: u32 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long ranks may take to say which machine they are on.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long finalising may take after something went wrong.
const UNFINISHED_FINALIZE_GRACE: Duration = Duration::from_secs(5);
/// And where nothing is known to have gone wrong: a rank that is gone, or can't be reached, keeps the others from it.
const FINALIZE_TIMEOUT: Duration = Duration::from_secs(30);

/// This process, once it has looked.
static HOST: OnceLock<Result<Option<Host>>> = OnceLock::new();

/// This process as a rank of MPI's world.
pub struct Host {
    rank: usize,
    size: usize,
    /// Which its children are not.
    process: u32,
    /// Each rank's.
    machines: Vec<Machine>,
    world: &'static dyn World,
}

/// MPI's world, whatever the ABI.
trait World: Send + Sync {
    /// Says whether MPI took it in time.
    fn send(&self, to: usize, message: [u8; MESSAGE_BYTES], limit: Duration) -> Result<bool>;
    fn receive(&self, message: &mut [u8; MESSAGE_BYTES]) -> Result<()>;
    fn finalize(&self) -> Result<()>;
    /// Whether MPI is not finalised yet.
    fn is_live(&self) -> bool;
}

struct Launched<A: Abi> {
    mpi: &'static Installed<A>,
    /// For letters alone.
    comm: A::Handle,
}

impl Host {
    /// This process as a rank, if a launcher has started it as one of several; none otherwise. Initialises MPI, if the program
    /// has not, and then finalises it when rank 0's process ends; if the program has, its own `MPI_Finalize` on rank 0
    /// sends the other ranks home.
    ///
    /// # Errors
    /// There is no MPI, or its own.
    pub fn enter() -> Result<Option<&'static Self>> {
        HOST.get_or_init(|| match launcher::is_launched() {
            false => Ok(None),
            true => library::with!(Mpi::get()?, mpi => Launched::enter(mpi)),
        })
        .as_ref()
        .map(Option::as_ref)
        .map_err(Clone::clone)
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What a rank is called: its number and the name of its machine.
    pub fn name(&self, rank: usize) -> String {
        let machine = self.machines.get(rank).map_or("", Machine::name);
        format!("rank {rank} on {machine}")
    }

    /// On how many machines the first ranks are, if each has an equal share of them, one after the other; else as many as there
    /// are ranks. Containers count as machines of their own where processes of one can't reach those of the other.
    pub fn machines(&self, ranks: usize) -> usize {
        machine::count(&self.machines[..ranks.min(self.size)])
    }

    /// Sends another rank a letter. Rank 0 calls this.
    ///
    /// # Errors
    /// It is too long; there is no such rank; MPI does not take it in time; MPI's own.
    pub fn send(&self, rank: usize, message: SessionInvitation, limit: Duration) -> Result<()> {
        if !(1..self.size).contains(&rank) {
            return Err(Error::invalid(format!("mpi: rank {rank} of {} can't be sent a message", self.size)));
        }
        self.send_message(rank, &Message::Invitation(message), limit)
    }

    fn send_message(&self, rank: usize, message: &Message, limit: Duration) -> Result<()> {
        match self.world.send(rank, message.write()?, limit)? {
            true => Ok(()),
            false => {
                let state = format!("MPI can't reach {}", self.name(rank));
                Err(Error::Deadline { operation: "mpi: a message to a rank".into(), after: limit, state })
            }
        }
    }

    /// The next letter of rank 0; none once it ends. Waits for ever: launchers end ranks whose rank 0 is gone.
    ///
    /// # Errors
    /// MPI's own; a letter that another version has written.
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

    /// Finalises MPI, with all other ranks, after the last letter and before this rank's process ends. Where a collective
    /// was left unfinished, MPI may wait for it for ever: it is left alone after 5 s, and the launcher may complain. Where none
    /// was, a finalisation that takes 30 s ends the process.
    ///
    /// # Errors
    /// MPI's own.
    pub fn finish(&self) -> Result<()> {
        if !abort_all() {
            return Err(Error::state("mpi: a worker does not leave MPI, which is not finalised"));
        }
        if is_finished() {
            // By this thread: MPI wants the one that has initialised it.
            let _watch = self.watch_finalisation();
            return self.world.finalize();
        }
        let (world, (sender, receiver)) = (self.world, mpsc::channel());
        thread::spawn(move || sender.send(world.finalize()));
        receiver.recv_timeout(UNFINISHED_FINALIZE_GRACE).unwrap_or(Ok(()))
    }

    /// Ends the process if what this returns is not dropped in time.
    fn watch_finalisation(&self) -> mpsc::Sender<()> {
        let (watch, watched) = mpsc::channel();
        let why = format!(
            "disco: {}: MPI_Finalize does not come back within {FINALIZE_TIMEOUT:?}: a rank is gone, or can't be reached",
            self.name(self.rank)
        );
        let end = move || {
            if watched.recv_timeout(FINALIZE_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Nobody may listen any more.
                _ = writeln!(io::stderr(), "{why}");
                // SAFETY: it may be called at any time; null are all streams.
                unsafe { fflush(ptr::null_mut()) };
                // SAFETY: it may be called at any time.
                unsafe { _exit(1) };
            }
        };
        if let Err(error) = thread::Builder::new().name("disco-finalize".into()).spawn(end) {
            tracing::warn!(%error, "nobody watches MPI_Finalize");
        }
        watch
    }

    /// Sends the other ranks home.
    fn end(&self) -> Result<()> {
        abort_all();
        let (end, limit) = (Message::End(is_finished()), Instant::now() + UNFINISHED_FINALIZE_GRACE);
        let left = || limit.saturating_duration_since(Instant::now());
        // One that is gone keeps none of the others here.
        (1..self.size).map(|rank| self.send_message(rank, &end, left())).fold(Ok(()), Result::and)
    }
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn fflush(stream: *mut c_void) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// The end of rank 0's process, which has initialised MPI here. Nothing in it panics but the allocator.
extern "C" fn at_exit() {
    let Some(Ok(Some(host))) = HOST.get() else { return };
    if host.process == process::id()
        && host.world.is_live()
        && let Err(error) = host.finish()
    {
        tracing::warn!(%error, "MPI is not finalised");
    }
}

/// The beginning of `MPI_Finalize` on rank 0, whoever calls it.
extern "C" fn at_finalize<H>(_: H, _: c_int, _: *mut c_void, _: *mut c_void) -> c_int {
    if let Some(Ok(Some(host))) = HOST.get()
        && let Err(error) = host.end()
    {
        tracing::warn!(%error, "ranks are not told that rank 0 ends");
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
    // SAFETY: MPI asks for an answer here.
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
                "mpi: a launcher has started {} ranks, of which {} sees none but this one: it is another MPI's launcher; that \
                 of this one is {}. Or set DISCO_BACKEND to a backend without MPI",
                launcher::ranks(),
                mpi.about.name(),
                mpi.about.launcher()
            )));
        }
        if size == 1 {
            return Ok(None);
        }
        // Before a communicator is made, which can't be given up.
        let machines = Self::locate(mpi, size)?;
        let mut comm = mpi.constants.comm_null;
        // SAFETY: all ranks have come here, and call this next.
        let code = unsafe { (mpi.table.comm_dup)(mpi.constants.comm_world, &mut comm) };
        mpi.about.check("MPI_Comm_dup", code)?;
        mpi.return_errors(comm)?;
        if rank == 0 {
            Self::call_at_end(mpi, is_ours)?;
        }
        let (process, world) = (process::id(), Box::leak(Box::new(Self { mpi, comm })));
        Ok(Some(Host { rank, size, process, machines, world }))
    }

    /// Each rank's machine. All ranks call this first, over MPI's world, whose errors stay with whoever has initialised MPI.
    fn locate(mpi: &Installed<A>, size: usize) -> Result<Vec<Machine>> {
        let mut request = mpi.constants.request_null;
        let (count, byte) = (RECORD_BYTES as c_int, mpi.constants.byte);
        // Kept, since nothing takes a collective back.
        let (mine, all) = (Machine::this().write().to_vec().leak(), vec![0; size * RECORD_BYTES].leak());
        let (from, to, comm) = (mine.as_ptr().cast(), all.as_mut_ptr().cast(), mpi.constants.comm_world);
        // SAFETY: both stay for ever, and nobody looks at them until the request is done, below.
        let code = unsafe { (mpi.table.iallgather)(from, count, byte, to, count, byte, comm, &mut request) };
        mpi.about.check("MPI_Iallgather", code)?;
        match Self::wait(mpi, &mut request, Some(LOCATE_TIMEOUT))? {
            true => Ok(all.chunks_exact(RECORD_BYTES).map(Machine::read).collect()),
            false => {
                let (operation, state) =
                    ("mpi: finding which machines ranks are on", "some have not called disco::init()");
                Err(Error::Deadline { operation: operation.into(), after: LOCATE_TIMEOUT, state: state.into() })
            }
        }
    }

    /// Sees to it that the other ranks hear of rank 0's end.
    fn call_at_end(mpi: &Installed<A>, is_ours: bool) -> Result<()> {
        let (mut key, none) = (0, ptr::null_mut());
        // SAFETY: both functions may be called whenever MPI does that.
        let code = unsafe { (mpi.table.comm_create_keyval)(not_copied, at_finalize, &mut key, none) };
        mpi.about.check("MPI_Comm_create_keyval", code)?;
        // What MPI_Finalize frees before it does anything else.
        // SAFETY: the key was made here.
        let code = unsafe { (mpi.table.comm_set_attr)(mpi.constants.comm_self, key, none) };
        mpi.about.check("MPI_Comm_set_attr", code)?;
        if is_ours {
            // SAFETY: the function may be called at the end of the process.
            unsafe { atexit(at_exit) };
        }
        Ok(())
    }

    /// Waits until a request is done, for at most so long. Says whether it is.
    fn wait(mpi: &Installed<A>, request: &mut A::Handle, limit: Option<Duration>) -> Result<bool> {
        let (start, mut polls) = (Instant::now(), 0);
        loop {
            let mut done = 0;
            // SAFETY: the request was started, and what it touches stays until it is done.
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
        // SAFETY: the letter stays until the request is done, which may be never.
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
        // SAFETY: the letter stays until the request is done, below.
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

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<rank {} of {} in process {}>", self.rank, self.size, process::id())
    }
}
