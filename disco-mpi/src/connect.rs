//! Rendezvous of ranks: each process initialises MPI once, all ranks announce their arrival, and then make a
//! communicator.

#![allow(unsafe_code)]

use std::env;
use std::ffi::{c_int, c_void};
use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use disco_core::store::SharedStore;
use disco_core::sync;
use disco_core::{
    Abort, Attendance, ConnectParams, Error, Rank, Rendezvous, Result, Store, Unavailable, WorkerId, WorkerRange,
};

use crate::abi::{Abi, Handle as _};
use crate::communicator::Communicator;
use crate::flag::AbortFlag;
use crate::launcher;
use crate::library::{self, Installed, Mpi, Threads};
use crate::machine::{self, Machine};
use crate::member::Member;
use crate::pmi;
use crate::split;

/// The rendezvous that used this process last, and its rank. A process has one rank of MPI.
static CLAIMED: Mutex<Option<(Vec<u8>, Rank)>> = Mutex::new(None);

/// Variables with which a rank finds its process manager.
const PMI_VARIABLES: [&str; 5] = ["PMI_FD", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"];

/// Connects one rank and returns its communicator of the whole world.
///
/// # Errors
/// Another rank is in this process; the library needs a launcher, and there is none; MPI's world has other ranks than
/// the session; ranks have not arrived; errors of MPI.
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
    if params.link.is_in_subset() {
        return Err(Error::invalid(
            "mpi: a worker of a subset can't be a rank of MPI, since a process has one rank, that of the parent session; use MPI in \
             the parent session, and another backend in the subset",
        ));
    }
    claim_process(at, params.rank, params.world.size())?;
    let meeting = Meeting {
        key: format!("disco.mpi {}", String::from_utf8_lossy(at.as_bytes())),
        store: params.link.store(),
        session: params.link.shared_store().clone(),
        rank: params.rank,
        size: params.world.size(),
        deadline: params.connect_deadline,
        start: Instant::now(),
    };
    meeting.check_session()?;
    let is_initialized = mpi.about.is_initialized()?;
    meeting.check_ranks(is_initialized)?;
    let has_no_launcher = !is_initialized && !launcher::is_launched();
    if !is_initialized {
        let has_manager = meeting.prepare(mpi)?;
        let initialized = init(mpi, params.world.size());
        if has_no_launcher {
            // Child processes must not inherit the variables of this rank.
            PMI_VARIABLES.into_iter().for_each(remove_var);
        }
        initialized?;
        if has_manager {
            *served() = Some(meeting.session.clone());
        }
    }
    check_threads(mpi)?;
    let flag = Arc::new(AbortFlag::default());
    params.link.on_abort(&(flag.clone() as Arc<dyn Abort>));
    let first = meeting.first_in_world(mpi)?;
    split::all_have_left();
    if has_no_launcher {
        unlink_shared_memory();
    }
    let comm = mpi.communicator_of(first..first + meeting.size, tag(at))?;
    let attendance = Attendance::new(meeting.store, meeting.key, params.rank.index(), meeting.size);
    let comm = Communicator::new(mpi, comm, params.deadline, flag, Some(attendance))?.exchange_faulty_reductions()?;
    Ok(Box::new(Member::new(comm)?))
}

/// Makes a communicator, without a session, from an `MPI_Comm` of the program. `handle` is the `MPI_Comm`: with rsmpi
/// `comm.as_raw() as usize`, in C `(uintptr_t) comm`.
///
/// Collective over the ranks of `handle`, which is duplicated, so that messages through the duplicate and through
/// `handle` don't mix. Dropping the returned communicator frees the duplicate; drop it before `MPI_Finalize`.
/// `deadline` limits each operation. Any thread may call this that may call MPI.
///
/// # Safety
/// `handle` is a communicator of the MPI library in this process and has not been freed.
///
/// # Errors
/// No MPI library was found, or it is not initialised; errors of MPI.
pub unsafe fn connect_comm(handle: usize, deadline: Duration) -> Result<Box<dyn disco_core::Communicator>> {
    library::with!(Mpi::get()?, mpi => duplicate(mpi, handle, deadline))
}

fn duplicate<A: Abi>(
    mpi: &'static Installed<A>,
    handle: usize,
    deadline: Duration,
) -> Result<Box<dyn disco_core::Communicator>> {
    if !mpi.about.is_initialized()? {
        return Err(Error::state(format!(
            "mpi: {} is not initialised; initialise MPI first, or set DISCO_MPI_LIBRARY if the program uses another library",
            mpi.about.name()
        )));
    }
    let mut comm = mpi.constants.comm_null;
    // SAFETY: the caller guarantees that the communicator is valid.
    let code = unsafe { (mpi.table.comm_dup)(A::Handle::from_bits(handle), &mut comm) };
    mpi.about.check("MPI_Comm_dup", code)?;
    let comm = Communicator::new(mpi, comm, deadline, Arc::default(), None)?.exchange_faulty_reductions()?;
    Ok(Box::new(Member::new(comm)?))
}

/// The store of the session for which this process initialised MPI without a launcher.
fn served() -> MutexGuard<'static, Option<Arc<dyn SharedStore>>> {
    static SERVED: Mutex<Option<Arc<dyn SharedStore>>> = Mutex::new(None);
    sync::lock(&SERVED)
}

fn claim_process(at: &Rendezvous, rank: Rank, size: usize) -> Result<()> {
    let mut taken = sync::lock(&CLAIMED);
    if let Some((_, other)) = taken.as_ref().filter(|(of, other)| of == at.as_bytes() && *other != rank) {
        return Err(Error::invalid(format!(
            "mpi: {rank} and {other} are threads of one process, and MPI has one rank in a process: make the {size} workers \
             processes, with `--session processes` or `processes({size})`"
        )));
    }
    *taken = Some((at.as_bytes().to_vec(), rank));
    Ok(())
}

/// A tag that is equal on all ranks of a rendezvous and different for the next rendezvous: the number at its end.
fn tag(at: &Rendezvous) -> c_int {
    // The largest tag that every MPI supports.
    const MAX_TAG: u64 = 32767;
    let text = String::from_utf8_lossy(at.as_bytes());
    let number = text.rsplit('-').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    (number % MAX_TAG) as c_int
}

/// Initialises MPI for all threads of this process.
pub(crate) fn init<A: Abi>(mpi: &Installed<A>, size: usize) -> Result<()> {
    if size > launcher::processors() {
        // With more ranks than processors, waiting ranks must yield. The user's settings have priority.
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
    // SAFETY: threads of this crate and of the lanes don't use the environment, and MPI, which does, is not initialised
    // yet.
    unsafe { env::set_var(name, value) };
}

fn remove_var(name: &str) {
    // SAFETY: threads of this crate and of the lanes don't use the environment, and MPI has read the variable during
    // its initialisation.
    unsafe { env::remove_var(name) };
}

/// Checks the thread support of MPI. The worker calls MPI from its own thread. Under a launcher, another thread of each
/// rank receives invitations.
fn check_threads<A: Abi>(mpi: &Installed<A>) -> Result<()> {
    match mpi.about.threads(mpi.constants.thread_serialized, mpi.constants.thread_multiple)? {
        Threads::One => Err(Error::invalid(
            "mpi: this program has initialised MPI for a single thread, and the worker runs on another one: request \
             MPI_THREAD_MULTIPLE from MPI_Init_thread",
        )),
        Threads::Serialized if launcher::is_launched() => Err(Error::invalid(
            "mpi: MPI takes calls of one thread at a time (MPI_THREAD_SERIALIZED), and a rank of a launcher has two \
             threads: request MPI_THREAD_MULTIPLE from MPI_Init_thread",
        )),
        Threads::Serialized | Threads::Multiple => Ok(()),
    }
}

/// Removes the files of MPICH's shared memory, which every rank has mapped by now. MPICH would remove them when it is
/// finalised, but ranks without a launcher end without finalising MPI.
fn unlink_shared_memory() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| Some(&line[line.find("/dev/shm/mpich_shm_")?..]));
    for file in files.filter(|file| !file.ends_with(" (deleted)")) {
        // One file may be mapped in several pieces.
        _ = fs::remove_file(file);
    }
}

/// The rendezvous of one rank.
struct Meeting {
    key: String,
    /// The session's store in this epoch.
    store: Arc<dyn Store>,
    session: Arc<dyn SharedStore>,
    rank: Rank,
    size: usize,
    deadline: Duration,
    start: Instant,
}

impl Meeting {
    /// Starts a process manager, so that the initialisation of MPI finds the peers. Returns whether the rank needs one.
    fn prepare<A: Abi>(&self, mpi: &Installed<A>) -> Result<bool> {
        if self.size == 1 || launcher::is_launched() {
            return Ok(false);
        }
        let about = &mpi.about;
        if !about.speaks_pmi() {
            let what =
                format!("backend mpi: a process without the launcher of {}, which starts its ranks,", about.name());
            return Err(Error::Unavailable(Unavailable::new(what).with_remedy(format!(
                "set DISCO_BACKEND=mpi and DISCO_WORKERS={0}, with which `disco::init()` starts this program under it, or run `mpirun -n {0} \
                 PROGRAM`",
                self.size
            ))));
        }
        // The initialisation can't be interrupted, so no rank starts it before all ranks have arrived.
        let machines = self.await_all("about to initialise", &Machine::this().write())?;
        let machines: Vec<_> = machines.iter().map(|record| Machine::read(record)).collect();
        let per_machine = self.size / machine::count(&machines);
        let peer = pmi::Peer {
            store: self.store.clone(),
            key: self.key.clone(),
            name: self.random_name()?,
            size: self.size,
            per_machine,
            limit: self.deadline,
        };
        let socket = pmi::serve(peer).map_err(|error| Error::system("mpi: no process manager", error))?;
        self.set_pmi_environment(socket, per_machine);
        Ok(true)
    }

    /// Fails if this process had a session without a launcher before: its ranks have ended, and MPI can't be
    /// initialised again for other ranks.
    fn check_session(&self) -> Result<()> {
        match served().as_ref() {
            Some(session) if self.size > 1 && !Arc::ptr_eq(session, &self.session) => Err(Error::invalid(format!(
                "mpi: an earlier session of this process has used MPI, and its ranks have ended; MPI can be initialised \
                 only once in a process: start one session, or run the program under MPI's launcher (`mpiexec -n {} \
                 PROGRAM`), whose ranks serve several sessions",
                self.size
            ))),
            _ => Ok(()),
        }
    }

    /// Fails if some ranks have initialised MPI and others have not: ranks that replace lost ranks can't join the world of
    /// an initialised MPI.
    fn check_ranks(&self, is_initialized: bool) -> Result<()> {
        if self.size == 1 || launcher::is_launched() {
            return Ok(());
        }
        let ranks = self.await_all("initialised", &[is_initialized.into()])?;
        let new: Vec<_> =
            (0..self.size).filter(|rank| ranks[*rank] != [1]).map(|rank| WorkerId::new(rank as u32)).collect();
        if new.is_empty() || new.len() == self.size {
            return Ok(());
        }
        Err(Error::state(format!(
            "mpi: {} joined after the others had initialised MPI, which takes no ranks then: end the session, and start again, from a \
             checkpoint if there is one",
            WorkerRange::list(&new)
        )))
    }

    /// A random name of the session, the same on all ranks.
    fn random_name(&self) -> Result<String> {
        let mine = format!("disco-{:016x}", RandomState::new().build_hasher().finish());
        let name = self.store.compare_and_set(&format!("{}: name", self.key), None, mine.as_bytes())?;
        Ok(String::from_utf8_lossy(&name).into_owned())
    }

    /// Sets the variables that a launcher would have set.
    fn set_pmi_environment(&self, socket: OwnedFd, per_machine: usize) {
        let rank = self.rank.index();
        let numbers = [rank, rank % per_machine, self.size, per_machine].map(|number| number.to_string());
        let values = [socket.into_raw_fd().to_string()].into_iter().chain(numbers);
        PMI_VARIABLES.into_iter().zip(values).for_each(|(name, value)| set_var(name, &value));
    }

    /// Waits until all ranks have initialised MPI, and returns the rank of the session's first rank in MPI's world: 0, or 1
    /// under a launcher if its rank 0 is a controller without a worker.
    fn first_in_world<A: Abi>(&self, mpi: &Installed<A>) -> Result<usize> {
        let (rank, size) = mpi.rank_and_size(mpi.constants.comm_world)?;
        self.check_size(mpi, size)?;
        let first = first_by(self.rank, rank, launcher::is_launched())?;
        // Making a communicator can't be interrupted, so no rank starts it before all ranks have arrived.
        let all = self.await_all("here", &[first])?;
        first_by_all(&all.concat())
    }

    /// Checks the size of MPI's world. With the launcher of another MPI, each rank is a world of its own.
    fn check_size<A: Abi>(&self, mpi: &Installed<A>, size: usize) -> Result<()> {
        let about = &mpi.about;
        if size < self.size && !launcher::is_launched() {
            return Err(Error::invalid(format!(
                "mpi: MPI was initialised in this process before, for {size} ranks, and can't be initialised again for \
                 {}: start the largest session first, or start ranks with {}",
                self.size,
                about.launcher()
            )));
        }
        if size < self.size {
            return Err(Error::invalid(format!(
                "mpi: MPI's world has {size} ranks, and the session has {}; the ranks may have been started by the launcher \
                 of another MPI: the launcher of {} is {}",
                self.size,
                about.name(),
                about.launcher()
            )));
        }
        Ok(())
    }

    /// Waits until all ranks have reached `point`, and returns the values that they have brought, in rank order.
    fn await_all(&self, point: &str, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = |rank: usize| format!("{}: {point} {rank}", self.key);
        self.store.set(&key(self.rank.index()), value)?;
        let wait = |peer: usize| {
            self.store.wait(&key(peer), self.left()).map_err(|error| match error {
                Error::Deadline { .. } => Error::Deadline {
                    operation: "connect".into(),
                    after: self.deadline,
                    state: format!("{} has not arrived", Rank::new(peer as u32)),
                },
                other => other,
            })
        };
        (0..self.size).map(wait).collect()
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }
}

/// The rank of the session's first rank in MPI's world, by `rank` of the session, which is `in_world` there.
///
/// # Errors
/// It is neither 0 nor, under a launcher, 1.
fn first_by(rank: Rank, in_world: usize, is_launched: bool) -> Result<u8> {
    match in_world.checked_sub(rank.index()) {
        Some(0) => Ok(0),
        Some(1) if is_launched => Ok(1),
        _ => Err(moved(rank, in_world)),
    }
}

/// The rank of the session's first rank in MPI's world, by each rank of the session.
///
/// # Errors
/// The ranks differ.
fn first_by_all(firsts: &[u8]) -> Result<usize> {
    let first = firsts.first().copied().unwrap_or(0);
    match firsts.iter().enumerate().find(|(_, other)| **other != first) {
        None => Ok(first.into()),
        Some((rank, other)) => Err(moved(Rank::new(rank as u32), rank + usize::from(*other))),
    }
}

fn moved(rank: Rank, in_world: usize) -> Error {
    Error::invalid(format!(
        "mpi: {rank} is rank {in_world} of MPI's world, whose ranks keep their numbers; if the session was resized: end it, and start \
         again, from a checkpoint if there is one"
    ))
}

impl<A: Abi> Installed<A> {
    /// Makes a communicator of these ranks of MPI's world. All of them call this with the same tag. Other threads may make
    /// other communicators at the same time, with other tags.
    fn communicator_of(&self, ranks: Range<usize>, tag: c_int) -> Result<A::Handle> {
        let (table, world) = (&self.table, self.constants.comm_world);
        let mut comm = self.constants.comm_null;
        let ranks: Vec<c_int> = ranks.map(|rank| rank as c_int).collect();
        let (mut all, mut some) = (comm, comm);
        // SAFETY: the world is valid after the initialisation of MPI.
        self.about.check("MPI_Comm_group", unsafe { (table.comm_group)(world, &mut all) })?;
        // SAFETY: the group of the world has these ranks: each is the rank there of a process that has arrived.
        let code = unsafe { (table.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &mut some) };
        self.about.check("MPI_Group_incl", code)?;
        // SAFETY: all ranks of the group make this call.
        let code = unsafe { (table.comm_create_group)(world, some, tag, &mut comm) };
        self.about.check("MPI_Comm_create_group", code)?;
        for mut group in [all, some] {
            // SAFETY: the group was made above and is not used any more.
            self.about.check("MPI_Group_free", unsafe { (table.group_free)(&mut group) })?;
        }
        Ok(comm)
    }

    /// This process's rank in a communicator, and its size.
    pub(crate) fn rank_and_size(&self, comm: A::Handle) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the caller passes a valid communicator.
        self.about.check("MPI_Comm_rank", unsafe { (self.table.comm_rank)(comm, &mut rank) })?;
        // SAFETY: the caller passes a valid communicator.
        self.about.check("MPI_Comm_size", unsafe { (self.table.comm_size)(comm, &mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// `MPI_STATUS_IGNORE`, for requests whose status is not used.
    pub(crate) fn status_ignore(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.constants.status_ignore)
    }

    /// Makes calls on a communicator return their errors. By default MPI ends the job.
    pub(crate) fn return_errors(&self, comm: A::Handle) -> Result<()> {
        // SAFETY: the communicator and the error handler are valid.
        let code = unsafe { (self.table.comm_set_errhandler)(comm, self.constants.errors_return) };
        self.about.check("MPI_Comm_set_errhandler", code)
    }
}

#[cfg(test)]
mod tests {
    use disco_core::Link;

    use super::*;

    #[test]
    fn a_session_begins_at_rank_0_of_mpi_or_under_a_launcher_at_rank_1() {
        let by = |rank, in_world, is_launched| first_by(Rank::new(rank), in_world, is_launched).ok();
        assert_eq!([by(2, 2, true), by(2, 2, false), by(2, 3, true)], [Some(0), Some(0), Some(1)]);
        assert_eq!([by(2, 3, false), by(2, 4, true), by(2, 1, true)], [None; 3]);
        assert_eq!([first_by_all(&[0, 0]).ok(), first_by_all(&[1, 1, 1]).ok()], [Some(0), Some(1)]);
        let moved = first_by_all(&[0, 1, 1]).unwrap_err().to_string();
        assert!(moved.starts_with("mpi: rank 1 is rank 2 of MPI's world, whose ranks keep their numbers; "), "{moved}");
    }

    /// MPICH names its files in shared memory by this name.
    #[test]
    fn ranks_of_a_session_have_one_name_and_those_of_another_session_have_another() {
        let rank = |rank: u32, link: &Link| Meeting {
            key: "mpi".into(),
            store: link.store(),
            session: link.shared_store().clone(),
            rank: Rank::new(rank),
            size: 2,
            deadline: Duration::from_secs(1),
            start: Instant::now(),
        };
        let names = [(); 2].map(|()| {
            let link = Link::bare(Arc::default());
            let [a, b] = [0, 1].map(|number| rank(number, &link).random_name().unwrap());
            assert_eq!(a, b);
            a
        });
        assert_ne!(names[0], names[1]);
    }
}
