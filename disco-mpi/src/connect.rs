//! How ranks come together: each process initialises MPI once, all say that they are there, and then make a communicator.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{c_int, c_void};
use std::fs;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use disco_core::link::SharedFd;
use disco_core::sync;
use disco_core::{Abort, Attendance, ConnectParams, Error, Rank, Rendezvous, Result, Store};

use crate::abi::{Abi, Handle as _};
use crate::communicator::Communicator;
use crate::flag::AbortFlag;
use crate::launcher;
use crate::library::{self, Installed, Mpi, Threads};
use crate::pmi;

/// Whose rank this process is, of the last rendezvous: MPI has one in each process.
static CLAIMED: Mutex<Option<(Vec<u8>, Rank)>> = Mutex::new(None);

/// Variables by which a rank finds its process manager.
const PMI_VARIABLES: [&str; 5] = ["PMI_FD", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"];

/// One rank's communicator of the whole world.
///
/// # Errors
/// Another rank is in this process; there is no launcher, and the library needs one; MPI's world is another; ranks that do
/// not come; MPI's own.
pub(crate) fn connect<A: Abi>(
    mpi: &'static Installed<A>,
    params: ConnectParams<'_>,
    at: &Rendezvous,
) -> Result<Box<dyn disco_core::Communicator>> {
    let device = params.queue.device();
    if !device.is_host() {
        let operation = format!("connect on {device}");
        return Err(Error::Unsupported { backend: crate::NAME, operation, dtype: None });
    }
    claim_process(at, params.rank, params.world.size())?;
    let meeting = Meeting {
        key: format!("disco.mpi {}", String::from_utf8_lossy(at.as_bytes())),
        store: params.link.store(),
        rank: params.rank,
        size: params.world.size(),
        deadline: params.connect_deadline,
        start: Instant::now(),
    };
    let mut sockets = Vec::new();
    meeting.check_session()?;
    let is_initialized = mpi.about.is_initialized()?;
    let has_no_launcher = !is_initialized && !launcher::is_launched();
    if !is_initialized {
        sockets = meeting.prepare(mpi, &params)?;
        let initialized = init(mpi, params.world.size());
        if has_no_launcher {
            // They are this rank's, and none of its children's.
            PMI_VARIABLES.into_iter().for_each(remove_var);
        }
        initialized?;
        if !sockets.is_empty() {
            *served() = Some(meeting.store.clone());
        }
    }
    check_threads(mpi)?;
    let flag = Arc::new(AbortFlag::default());
    params.link.on_abort(&(flag.clone() as Arc<dyn Abort>));
    meeting.check_world(mpi)?;
    // Making a communicator can't be given up: nobody starts before all are there.
    meeting.await_all("here")?;
    if has_no_launcher {
        unlink_shared_memory();
    }
    sockets.into_iter().for_each(|socket| params.link.descriptors().unshare(socket));
    let comm = mpi.communicator_of(meeting.size, tag(at))?;
    let attendance = Attendance::new(meeting.store, meeting.key, params.rank.index(), meeting.size);
    Ok(Box::new(
        Communicator::new(mpi, comm, params.deadline, flag, Some(attendance))?.exchange_faulty_reductions()?,
    ))
}

/// This rank of a communicator that the program has made itself, without a session. `handle` is its `MPI_Comm`: with rsmpi
/// `comm.as_raw() as usize`, in C `(uintptr_t) comm`.
///
/// All of its ranks call this together, since it is duplicated: what goes through one does not meet what goes through the
/// other. The duplicate is freed when this communicator is dropped, before `MPI_Finalize`. `deadline` is for each
/// operation. The thread that calls may be any that MPI lets call.
///
/// # Safety
/// It is a communicator of the MPI in this process, and not freed.
///
/// # Errors
/// There is no MPI, or it is not initialised, or its own.
pub unsafe fn connect_comm(handle: usize, deadline: Duration) -> Result<Box<dyn disco_core::Communicator>> {
    library::with!(Mpi::get()?, mpi => duplicate(mpi, handle, deadline))
}

fn duplicate<A: Abi>(
    mpi: &'static Installed<A>,
    handle: usize,
    deadline: Duration,
) -> Result<Box<dyn disco_core::Communicator>> {
    if !mpi.about.is_initialized()? {
        return Err(Error::state(format!("mpi: {} is not initialised: is it the program's?", mpi.about.name())));
    }
    let mut comm = mpi.constants.comm_null;
    // SAFETY: the communicator is there, as the caller promises.
    let code = unsafe { (mpi.table.comm_dup)(A::Handle::from_bits(handle), &mut comm) };
    mpi.about.check("MPI_Comm_dup", code)?;
    Ok(Box::new(Communicator::new(mpi, comm, deadline, Arc::default(), None)?.exchange_faulty_reductions()?))
}

/// The store of the session whose ranks this process has served by PMI.
fn served() -> MutexGuard<'static, Option<Arc<dyn Store>>> {
    static SERVED: Mutex<Option<Arc<dyn Store>>> = Mutex::new(None);
    sync::lock(&SERVED)
}

fn claim_process(at: &Rendezvous, rank: Rank, size: usize) -> Result<()> {
    let mut taken = sync::lock(&CLAIMED);
    if let Some((_, other)) = taken.as_ref().filter(|(of, other)| of == at.as_bytes() && *other != rank) {
        return Err(Error::invalid(format!(
            "mpi: {rank} and {other} are threads of one process, which MPI has only one rank for: make the {size} workers \
             processes, by `--session processes` or `Builder::processes({size})`"
        )));
    }
    *taken = Some((at.as_bytes().to_vec(), rank));
    Ok(())
}

/// Alike on all ranks of a rendezvous, unlike that of the next: the number at its end.
fn tag(at: &Rendezvous) -> c_int {
    // Every MPI has tags up to this.
    const MAX_TAG: u64 = 32767;
    let text = String::from_utf8_lossy(at.as_bytes());
    let number = text.rsplit('-').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    (number % MAX_TAG) as c_int
}

/// Initialises MPI for all threads of this process.
pub(crate) fn init<A: Abi>(mpi: &Installed<A>, size: usize) -> Result<()> {
    if size > launcher::processors() {
        // Whoever waits lets others run; said unless the user has said something else.
        for (name, value) in [("I_MPI_PIN", "0"), ("I_MPI_THREAD_YIELD", "2"), ("OMPI_MCA_mpi_yield_when_idle", "1")] {
            if env::var_os(name).is_none() {
                set_var(name, value);
            }
        }
    }
    mpi.about.init(mpi.constants.thread_multiple)?;
    mpi.return_errors(mpi.constants.comm_world)
}

fn set_var(name: &str, value: &str) {
    // SAFETY: threads of this crate and of the lanes do not use the environment, and MPI, which does, is not there yet.
    unsafe { env::set_var(name, value) };
}

fn remove_var(name: &str) {
    // SAFETY: as for `set_var`; MPI has read it.
    unsafe { env::remove_var(name) };
}

/// Workers are threads; where a launcher has started ranks, each has another thread that listens for invitations.
fn check_threads<A: Abi>(mpi: &Installed<A>) -> Result<()> {
    match mpi.about.threads(mpi.constants.thread_serialized, mpi.constants.thread_multiple)? {
        Threads::One => Err(Error::invalid(
            "mpi: this program has initialised MPI for one thread alone, and the worker is another: ask \
             MPI_Init_thread for MPI_THREAD_MULTIPLE",
        )),
        Threads::Serialized if launcher::is_launched() => Err(Error::invalid(
            "mpi: MPI takes calls of one thread at a time (MPI_THREAD_SERIALIZED), and a launcher's rank has two: ask \
                 MPI_Init_thread for MPI_THREAD_MULTIPLE",
        )),
        Threads::Serialized | Threads::Multiple => Ok(()),
    }
}

/// Takes the names of MPICH's shared memory away, which every rank has mapped by now: nobody would, since ranks that were
/// started without a launcher end without finalising MPI.
fn unlink_shared_memory() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| Some(&line[line.find("/dev/shm/mpich_shm_")?..]));
    for file in files.filter(|file| !file.ends_with(" (deleted)")) {
        // One file may be mapped in several pieces.
        _ = fs::remove_file(file);
    }
}

/// One rank on its way.
struct Meeting {
    key: String,
    store: Arc<dyn Store>,
    rank: Rank,
    size: usize,
    deadline: Duration,
    start: Instant,
}

impl Meeting {
    /// Sees to it that MPI finds its peers when it is initialised. Returns what this rank has shared for that.
    fn prepare<A: Abi>(&self, mpi: &Installed<A>, params: &ConnectParams<'_>) -> Result<Vec<SharedFd>> {
        let mut shared = Vec::new();
        if self.size == 1 || launcher::is_launched() {
            return Ok(shared);
        }
        let about = &mpi.about;
        if !about.speaks_pmi() {
            return Err(Error::invalid(format!(
                "mpi: {1} needs its launcher to start ranks: run `disco run --backend mpi --workers {0} -- PROGRAM` or `mpirun -n {0} PROGRAM`",
                self.size,
                about.name()
            )));
        }
        let refused = |error: std::io::Error| Error::system("mpi: no process manager", error);
        let mine = match self.rank.index() {
            0 => {
                let mut sockets = pmi::serve(self.size).map_err(refused)?.into_iter();
                let mine = sockets.next();
                for (rank, socket) in (1..).zip(sockets) {
                    let name = params.link.descriptors().share(socket)?;
                    shared.push(name);
                    self.store.set(&self.socket(rank), &name.to_bits().to_le_bytes())?;
                }
                mine
            }
            rank => Some(self.receive(params, rank)?),
        };
        // Initialising can't be given up: nobody starts before all are there.
        self.await_all("about to initialise")?;
        if let Some(socket) = mine {
            self.set_pmi_environment(socket);
        }
        Ok(shared)
    }

    /// Ranks that were started for a session ended with it, and MPI can't be initialised again for others.
    fn check_session(&self) -> Result<()> {
        match served().as_ref() {
            Some(store) if self.size > 1 && !Arc::ptr_eq(store, &self.store) => Err(Error::invalid(format!(
                "mpi: this process has had a session over MPI, whose ranks are gone, and MPI is initialised once in a \
                 process: make one session, or run the program under MPI's launcher, as `mpiexec -n {} PROGRAM`, where \
                 ranks stay",
                self.size
            ))),
            _ => Ok(()),
        }
    }

    fn receive(&self, params: &ConnectParams<'_>, rank: usize) -> Result<OwnedFd> {
        let name = self.store.wait(&self.socket(rank), self.left())?;
        let name = name.try_into().map_err(|_| Error::protocol("mpi: the store has no name of a socket"))?;
        params.link.descriptors().receive(SharedFd::from_bits(u64::from_le_bytes(name)), self.left())
    }

    /// What a launcher would have put into the environment.
    fn set_pmi_environment(&self, socket: OwnedFd) {
        let (rank, size) = (self.rank.index().to_string(), self.size.to_string());
        let values = [&socket.into_raw_fd().to_string(), &rank, &rank, &size, &size];
        PMI_VARIABLES.into_iter().zip(values).for_each(|(name, value)| set_var(name, value));
    }

    /// A launcher of another family makes as many worlds as ranks.
    fn check_world<A: Abi>(&self, mpi: &Installed<A>) -> Result<()> {
        let (rank, size) = mpi.rank_and_size(mpi.constants.comm_world)?;
        let about = &mpi.about;
        if size < self.size && !launcher::is_launched() {
            return Err(Error::invalid(format!(
                "mpi: MPI was initialised in this process before, for {size} ranks, and can't be for {}: make the \
                 largest session first, or start ranks by {}",
                self.size,
                about.launcher()
            )));
        }
        if size < self.size {
            return Err(Error::invalid(format!(
                "mpi: MPI's world has {size} ranks, the session {}: were they started by another MPI's launcher? That of {} \
                 is {}",
                self.size,
                about.name(),
                about.launcher()
            )));
        }
        match rank == self.rank.index() {
            true => Ok(()),
            false => Err(Error::invalid(format!("mpi: {} is rank {rank} of MPI's world", self.rank))),
        }
    }

    /// Waits until all have come that far.
    fn await_all(&self, point: &str) -> Result<()> {
        let key = |rank: usize| format!("{}: {point} {rank}", self.key);
        self.store.set(&key(self.rank.index()), b"")?;
        for peer in 0..self.size {
            self.store.wait(&key(peer), self.left()).map_err(|error| match error {
                Error::Deadline { .. } => Error::Deadline {
                    operation: "connect".into(),
                    after: self.deadline,
                    state: format!("{} has not arrived", Rank::new(peer as u32)),
                },
                other => other,
            })?;
        }
        Ok(())
    }

    fn socket(&self, rank: usize) -> String {
        format!("{}: socket {rank}", self.key)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }
}

impl<A: Abi> Installed<A> {
    /// A communicator of the first ranks of MPI's world, all of which call this with the same tag. Others may do so for another
    /// meanwhile.
    fn communicator_of(&self, size: usize, tag: c_int) -> Result<A::Handle> {
        let (table, world) = (&self.table, self.constants.comm_world);
        let mut comm = self.constants.comm_null;
        let ranks: Vec<c_int> = (0..size as c_int).collect();
        let (mut all, mut first) = (comm, comm);
        // SAFETY: the world is there.
        self.about.check("MPI_Comm_group", unsafe { (table.comm_group)(world, &mut all) })?;
        // SAFETY: the group has these ranks.
        let code = unsafe { (table.group_incl)(all, size as c_int, ranks.as_ptr(), &mut first) };
        self.about.check("MPI_Group_incl", code)?;
        // SAFETY: all ranks of the group call this.
        let code = unsafe { (table.comm_create_group)(world, first, tag, &mut comm) };
        self.about.check("MPI_Comm_create_group", code)?;
        for mut group in [all, first] {
            // SAFETY: nobody else knows it.
            self.about.check("MPI_Group_free", unsafe { (table.group_free)(&mut group) })?;
        }
        Ok(comm)
    }

    /// This process's rank in a communicator, and its size.
    pub(crate) fn rank_and_size(&self, comm: A::Handle) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is there.
        self.about.check("MPI_Comm_rank", unsafe { (self.table.comm_rank)(comm, &mut rank) })?;
        // SAFETY: as above.
        self.about.check("MPI_Comm_size", unsafe { (self.table.comm_size)(comm, &mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// Where the status of a request goes that nobody wants to know.
    pub(crate) fn status_ignore(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.constants.status_ignore)
    }

    /// Errors of a communicator come back, rather than end the job.
    pub(crate) fn return_errors(&self, comm: A::Handle) -> Result<()> {
        // SAFETY: both are there.
        let code = unsafe { (self.table.comm_set_errhandler)(comm, self.constants.errors_return) };
        self.about.check("MPI_Comm_set_errhandler", code)
    }
}
