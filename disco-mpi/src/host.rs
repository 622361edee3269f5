//! Ranks that a launcher has started, as workers to be: rank 0 is the controller's process, and invites the others to its
//! sessions, one after the other, until it ends.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco_core::{Abort as _, Error, Result};

use crate::abi::Abi;
use crate::communicator::Flag;
use crate::connect;
use crate::launcher;
use crate::library::{self, Installed, Mpi};

/// The longest text of an invitation, and what stands before it: what it is and how long.
const TEXT: usize = 509;
const LETTER: usize = TEXT + 3;
/// The tag of letters.
const TAG: c_int = 2;
/// Looks at the letter box before a rank that is idle sleeps, and how long.
const LOOKS: u32 = 1000;
const NAP: Duration = Duration::from_millis(1);
/// How long finalising may take after something went wrong.
const FINALIZE: Duration = Duration::from_secs(5);

/// This process, once it has looked.
static HOST: OnceLock<Result<Option<Host>>> = OnceLock::new();

/// A communicator has been left with requests under way: finalising would wait for them.
static UNFINISHED: AtomicBool = AtomicBool::new(false);
/// Communicators, some of which are gone.
static FLAGS: Mutex<Vec<Weak<Flag>>> = Mutex::new(Vec::new());
/// How long their threads may take to leave MPI.
const LEAVE: Duration = Duration::from_secs(1);

/// This process as a rank of MPI's world.
pub struct Host {
    rank: usize,
    size: usize,
    /// Which its children are not.
    process: u32,
    world: &'static dyn World,
}

/// What a rank is told.
enum Letter {
    /// The text of an invitation.
    Invitation(String),
    /// Rank 0 ends; whether MPI can be finalised.
    End(bool),
}

/// MPI's world, whatever the ABI.
trait World: Send + Sync {
    fn send(&self, to: usize, letter: &mut [u8; LETTER]) -> Result<()>;
    fn receive(&self, letter: &mut [u8; LETTER]) -> Result<()>;
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

    /// Passes an invitation on to another rank. Rank 0 calls this.
    ///
    /// # Errors
    /// It is too long; there is no such rank; MPI's own.
    pub fn invite(&self, rank: usize, text: &str) -> Result<()> {
        if text.len() > TEXT || !(1..self.size).contains(&rank) {
            return Err(Error::invalid(format!("mpi: rank {rank} of {} can't be invited", self.size)));
        }
        self.world.send(rank, &mut write(1, text))
    }

    /// The next invitation of rank 0; none once it ends. Waits for ever: launchers end ranks whose rank 0 is gone.
    ///
    /// # Errors
    /// MPI's own.
    pub fn next_invitation(&self) -> Result<Option<String>> {
        let mut letter = [0; LETTER];
        self.world.receive(&mut letter)?;
        match read(&letter) {
            Letter::Invitation(text) => Ok(Some(text)),
            Letter::End(is_finished) => {
                if !is_finished {
                    leave_unfinished();
                }
                Ok(None)
            }
        }
    }

    /// Finalises MPI, with all other ranks, after the last invitation and before this rank's process ends. Where a collective
    /// was left unfinished, MPI may wait for it for ever: it is left alone after 5 s, and the launcher may complain.
    ///
    /// # Errors
    /// MPI's own.
    pub fn finish(&self) -> Result<()> {
        if !leave_all() {
            return Err(Error::invalid("mpi: a worker does not leave MPI, which is not finalised"));
        }
        if is_finished() {
            return self.world.finalize();
        }
        let (world, (tell, told)) = (self.world, mpsc::channel());
        thread::spawn(move || tell.send(world.finalize()));
        told.recv_timeout(FINALIZE).unwrap_or(Ok(()))
    }

    /// Sends the other ranks home.
    fn end(&self) -> Result<()> {
        leave_all();
        let kind = if is_finished() { 2 } else { 3 };
        (1..self.size).try_for_each(|rank| self.world.send(rank, &mut write(kind, "")))
    }
}

/// A collective was left, by this rank or another: MPI may wait for those who were in it.
pub(crate) fn leave_unfinished() {
    UNFINISHED.store(true, Ordering::Release);
}

/// Another communicator.
pub(crate) fn watch(flag: &Arc<Flag>) {
    let mut flags = FLAGS.lock().unwrap_or_else(PoisonError::into_inner);
    flags.retain(|flag| flag.strong_count() > 0);
    flags.push(Arc::downgrade(flag));
}

/// Ends what communicators of this process do, so that MPI can be finalised: none calls it any more. Says whether that is so.
fn leave_all() -> bool {
    let flags = std::mem::take(&mut *FLAGS.lock().unwrap_or_else(PoisonError::into_inner));
    let flags: Vec<Arc<Flag>> = flags.iter().filter_map(Weak::upgrade).collect();
    flags.iter().for_each(|flag| flag.abort(&"MPI is finalised".into()));
    let start = Instant::now();
    while flags.iter().any(|flag| flag.is_inside()) {
        if start.elapsed() > LEAVE {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn is_finished() -> bool {
    !UNFINISHED.load(Ordering::Acquire)
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
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

fn write(kind: u8, text: &str) -> [u8; LETTER] {
    let mut letter = [0; LETTER];
    letter[0] = kind;
    letter[1..3].copy_from_slice(&(text.len() as u16).to_le_bytes());
    letter[3..3 + text.len()].copy_from_slice(text.as_bytes());
    letter
}

fn read(letter: &[u8; LETTER]) -> Letter {
    let length = usize::from(u16::from_le_bytes([letter[1], letter[2]])).min(TEXT);
    match letter[0] {
        1 => Letter::Invitation(String::from_utf8_lossy(&letter[3..3 + length]).into_owned()),
        kind => Letter::End(kind == 2),
    }
}

impl<A: Abi> Launched<A> {
    fn enter(mpi: &'static Installed<A>) -> Result<Option<Host>> {
        let is_ours = !mpi.about.is_initialized()?;
        if is_ours {
            connect::init(mpi, launcher::ranks())?;
        }
        let (rank, size) = mpi.place_in(mpi.constants.comm_world)?;
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
        let mut comm = mpi.constants.comm_null;
        // SAFETY: all ranks call this first.
        let code = unsafe { (mpi.table.comm_dup)(mpi.constants.comm_world, &mut comm) };
        mpi.about.check("MPI_Comm_dup", code)?;
        mpi.return_errors(comm)?;
        if rank == 0 {
            Self::call_at_end(mpi, is_ours)?;
        }
        let process = process::id();
        Ok(Some(Host { rank, size, process, world: Box::leak(Box::new(Self { mpi, comm })) }))
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

    fn wait(&self, request: &mut A::Handle) -> Result<()> {
        let mut looks = 0;
        loop {
            let mut done = 0;
            // SAFETY: the request was started, and its letter stays until it is done.
            let code = unsafe { (self.mpi.table.test)(request, &mut done, self.mpi.status_ignore()) };
            self.mpi.about.check("MPI_Test", code)?;
            if done != 0 {
                return Ok(());
            }
            looks += 1;
            if looks > LOOKS {
                thread::sleep(NAP);
            }
        }
    }
}

impl<A: Abi> World for Launched<A> {
    fn send(&self, to: usize, letter: &mut [u8; LETTER]) -> Result<()> {
        let (mpi, mut request) = (self.mpi, self.mpi.constants.request_null);
        let (data, bytes, byte) = (letter.as_ptr().cast(), LETTER as c_int, mpi.constants.byte);
        // SAFETY: the letter stays until the request is done, below.
        let code = unsafe { (mpi.table.isend)(data, bytes, byte, to as c_int, TAG, self.comm, &mut request) };
        mpi.about.check("MPI_Isend", code)?;
        self.wait(&mut request)
    }

    fn receive(&self, letter: &mut [u8; LETTER]) -> Result<()> {
        let (mpi, mut request) = (self.mpi, self.mpi.constants.request_null);
        let (data, bytes, byte) = (letter.as_mut_ptr().cast(), LETTER as c_int, mpi.constants.byte);
        // SAFETY: the letter stays until the request is done, below.
        let code = unsafe { (mpi.table.irecv)(data, bytes, byte, 0, TAG, self.comm, &mut request) };
        mpi.about.check("MPI_Irecv", code)?;
        self.wait(&mut request)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_were_written() {
        assert!(matches!(read(&write(1, "3:disco-1f:00ff")), Letter::Invitation(text) if text == "3:disco-1f:00ff"));
        assert!(matches!(read(&write(2, "")), Letter::End(true)));
        assert!(matches!(read(&write(3, "")), Letter::End(false)));
    }
}
