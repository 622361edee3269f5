//! The socket on which tasks of one machine get their invitations from task 0.
//!
//! ```text
//! task r ──▶ task 0   u32 little endian: r
//! task r ◀── task 0   text of the invitation, then end of file
//! ```
//!
//! The name of the socket follows from the user and the job, so both ends check that the peer is this user's process.
//! A task that gets no text learns that task 0 has ended.
//!
//! Each task has the name of a second socket, on which nobody listens: a program that a task starts inherits the task's
//! variables, but must not take its invitations.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use disco_channel::processes::Invitation;
use disco_core::error::LostPeer;
use disco_core::{Error, Result};
use rustix::net::sockopt;

/// How long a connected task may take to send its number.
const RANK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Longest text of an invitation, in bytes.
const MAX_TEXT_BYTES: u64 = 4096;

/// A task's right to its invitations, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: UnixListener,
}

impl Claim {
    /// Claims task `rank` for this process; `None` if another process on this machine has claimed it.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub(crate) fn take(job: &str, rank: usize) -> Result<Option<Self>> {
        match address(job, &format!("-task-{rank}")).and_then(|address| UnixListener::bind_addr(&address)) {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(Error::system(format!("task {rank} of job `{job}` can't be claimed"), error)),
        }
    }
}

/// Task 0's end.
#[derive(Debug)]
pub(crate) struct JobSocket {
    listener: UnixListener,
    /// Tasks that wait for an invitation.
    waiting: Mutex<HashMap<usize, UnixStream>>,
}

impl JobSocket {
    /// Listens for the tasks of a job.
    ///
    /// # Errors
    /// Another process has the socket, or the system refuses one.
    pub(crate) fn listen(job: &str) -> Result<Self> {
        let bind = || -> io::Result<Self> {
            let listener = UnixListener::bind_addr(&address(job, "")?)?;
            listener.set_nonblocking(true)?;
            Ok(Self { listener, waiting: Mutex::default() })
        };
        bind().map_err(|error| {
            Error::system(
                format!("the socket of job `{job}` for the launcher's tasks can't be opened on this machine"),
                error,
            )
        })
    }

    /// Sends its invitation to task `rank`.
    ///
    /// # Errors
    /// The task does not connect within `limit`, or has ended.
    pub(crate) fn send(&self, rank: usize, text: &str, limit: Duration) -> Result<()> {
        let start = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = loop {
            if let Some(stream) = waiting.remove(&rank) {
                break stream;
            }
            match self.listener.accept() {
                Ok((stream, _)) => match greeted(stream) {
                    Ok((other, stream)) => _ = waiting.insert(other, stream),
                    Err(error) => tracing::warn!(%error, "a connection to the job's socket was refused"),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < limit => {
                    thread::sleep(POLL_INTERVAL);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let state =
                        format!("task {rank} has not called disco::init(), serves another session, or has ended");
                    return Err(Error::Deadline {
                        operation: "start: inviting the launcher's tasks".into(),
                        after: limit,
                        state,
                    });
                }
                Err(error) => return Err(Error::system("the job's socket accepts no connection", error)),
            }
        };
        stream.write_all(text.as_bytes()).map_err(|error| Error::system(format!("task {rank} can't be invited"), error))
    }

    /// Serves each invitation that task 0 sends to task `rank`, until task 0 ends.
    ///
    /// # Errors
    /// Task 0 does not listen within `limit`, its socket is another user's, or it was lost in a session. Other errors of
    /// `serve` are printed.
    pub(crate) fn serve(
        job: &str,
        rank: usize,
        limit: Duration,
        serve: impl Fn(Invitation) -> Result<()>,
    ) -> Result<()> {
        let (start, mut has_connected, mut lost) = (Instant::now(), false, Ok(()));
        loop {
            let mut stream = match connect(job) {
                Ok(stream) => stream,
                // Task 0 has ended.
                Err(_) if has_connected => return lost,
                Err(error) if start.elapsed() > limit => {
                    let what = format!(
                        "task {rank} has waited {limit:?} for task 0, which has not called disco::init() on this machine"
                    );
                    return Err(Error::system(what, error));
                }
                Err(_) => {
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            has_connected = true;
            let mut text = String::new();
            let exchanged = stream
                .write_all(&(rank as u32).to_le_bytes())
                .and_then(|()| stream.take(MAX_TEXT_BYTES).read_to_string(&mut text));
            match exchanged {
                Ok(_) if !text.is_empty() => {
                    lost = match Invitation::parse(&text).and_then(&serve) {
                        Err(Error::Lost(loss)) if loss.peer == LostPeer::Controller => Err(Error::Lost(loss)),
                        Err(error) => {
                            // Not fatal: the controller has this error, too, and may start another session.
                            disco_core::tell(format_args!("disco: task {rank}: {error}"));
                            Ok(())
                        }
                        Ok(()) => Ok(()),
                    };
                }
                _ => return lost,
            }
        }
    }
}

/// The abstract name of a job's socket, with `part` behind it.
fn address(job: &str, part: &str) -> io::Result<SocketAddr> {
    // Without a name of the job: all tasks of the machine have one parent, the launcher's agent.
    let job = match job {
        "" => format!("of-{}", std::os::unix::process::parent_id()),
        job => job.to_owned(),
    };
    SocketAddr::from_abstract_name(format!("disco-job-{}-{job}{part}", rustix::process::geteuid().as_raw()))
}

fn connect(job: &str) -> io::Result<UnixStream> {
    checked(UnixStream::connect_addr(&address(job, "")?)?)
}

/// A stream whose other end is this user's.
fn checked(stream: UnixStream) -> io::Result<UnixStream> {
    if sockopt::socket_peercred(&stream)?.uid == rustix::process::geteuid() {
        Ok(stream)
    } else {
        Err(io::Error::other("the other end is another user's process"))
    }
}

/// The number of the task that has connected.
fn greeted(stream: UnixStream) -> io::Result<(usize, UnixStream)> {
    let mut stream = checked(stream)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(RANK_TIMEOUT))?;
    let mut rank = [0; 4];
    stream.read_exact(&mut rank)?;
    Ok((u32::from_le_bytes(rank) as usize, stream))
}
