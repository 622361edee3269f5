//! The client's end.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use disco_core::status::Program;
use disco_core::{Error, Result};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Name, is_trusted};

/// How long a program may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer, in bytes: the status of a session of 100,000 workers.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Bytes that are read at once.
const PART_BYTES: usize = 64 << 10;
/// `__SO_ACCEPTCON` of Linux: the flag of sockets that listen, among those in `/proc/net/unix`.
const LISTENS: u32 = 1 << 16;

/// A program that [`list`] has found.
#[non_exhaustive]
#[derive(Debug)]
pub struct Found {
    /// Its process id.
    pub process: u32,
    /// Its name; empty if `/proc` does not have it.
    pub name: String,
    /// Its answer.
    pub answer: Result<Program>,
}

/// Asks all programs of this user on this machine that have sessions, in the order of their process ids; as root the
/// programs of all users. A program that does not answer within about 5 s is listed with that error. All are asked at once.
///
/// # Errors
/// The system does not list its sockets.
pub fn list() -> Result<Vec<Found>> {
    let (sender, answers) = mpsc::channel();
    let names = names()?;
    for name in names.iter().copied() {
        let sender = sender.clone();
        let ask = move || _ = sender.send((name, ask_one(name)));
        let started = thread::Builder::new().name("disco-ask".into()).spawn(ask);
        started.map_err(|error| Error::system("a thread that asks a program can't be started", error))?;
    }
    drop(sender);
    let mut found: Vec<_> =
        answers.into_iter().filter_map(|(name, answer)| Some((name, answer.transpose()?))).collect();
    found.sort_by_key(|(name, _)| *name);
    let found = found.into_iter().map(|(Name { process, .. }, answer)| {
        let name = answer.as_ref().map_or_else(|_| name_of(process), |program| program.program.clone());
        Found { process, name, answer }
    });
    Ok(found.collect())
}

/// Asks the program of process `process`, which must be this user's. Takes at most 10 s: 5 s until the program accepts,
/// and 5 s for its answer.
///
/// # Errors
/// There is no such process, it has no session, or it does not answer in time: the error says whether it is stopped.
pub fn ask(process: u32) -> Result<Program> {
    for name in names()?.into_iter().filter(|name| name.process == process) {
        if let Some(program) = ask_one(name)? {
            return Ok(program);
        }
    }
    Err(Error::refused(match state_of(process) {
        None => format!("there is no process {process}"),
        Some(_) => format!(
            "process {process} (`{}`) has no session of this user: it has not started one, has set DISCO_STATUS=0, or is \
             a worker process; `disco status` lists the programs with sessions",
            name_of(process)
        ),
    }))
}

/// The answer; none if the program has just ended its last session.
fn ask_one(name: Name) -> Result<Option<Program>> {
    match exchange(name) {
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::protocol(format!("process {} answers with something else than its status: {error}", name.process))
        }),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset) => {
            Ok(None)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            let why = match state_of(name.process) {
                Some('T' | 't') => "; it is stopped, by a signal or a debugger",
                Some('D') => "; it waits for the system, and can't be interrupted",
                _ => "",
            };
            let (process, program) = (name.process, name_of(name.process));
            Err(Error::refused(format!(
                "process {process} (`{program}`) does not answer within {ANSWER_TIMEOUT:?}{why}"
            )))
        }
        Err(error) => Err(Error::system(format!("process {} can't be asked for its status", name.process), error)),
    }
}

fn exchange(name: Name) -> io::Result<Vec<u8>> {
    // With the timeout from the start: a connection waits while the queue of a stopped program is full.
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_TIMEOUT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.text().as_bytes())?)?;
    let stream = UnixStream::from(socket);
    // Another user may have taken the name.
    if !is_trusted(sockopt::socket_peercred(&stream)?.uid.as_raw(), name.user) {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "the socket is another user's"));
    }
    let (mut bytes, mut part, begun) = (Vec::new(), vec![0; PART_BYTES], Instant::now());
    loop {
        // A limit for the whole answer, not for each part.
        let left = ANSWER_TIMEOUT.saturating_sub(begun.elapsed());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match (&stream).read(&mut part)? {
            0 => return Ok(bytes),
            _ if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            count => bytes.extend_from_slice(&part[..count]),
        }
        if bytes.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::other(format!("its answer has more than {MAX_ANSWER_BYTES} bytes")));
        }
    }
}

/// The names of all sockets that may be asked.
fn names() -> Result<Vec<Name>> {
    let table = fs::read_to_string("/proc/net/unix");
    let table = table.map_err(|error| Error::system("the system's list of sockets can't be read", error))?;
    let user = rustix::process::geteuid().as_raw();
    let mut names: Vec<Name> = table.lines().filter_map(listening).filter(|name| is_trusted(user, name.user)).collect();
    names.sort();
    Ok(names)
}

/// The name in a line of `/proc/net/unix`: `Num RefCount Protocol Flags Type St Inode Path`.
#[allow(clippy::disallowed_methods, reason = "a text of the kernel")]
fn listening(line: &str) -> Option<Name> {
    let mut words = line.split_ascii_whitespace();
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let name = words.nth(3)?.strip_prefix('@')?;
    if flags & LISTENS != 0 { Name::parse(name) } else { None }
}

fn name_of(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

/// The state of a process, as in `ps`; none without such a process.
#[allow(clippy::disallowed_methods, reason = "a text of the kernel")]
fn state_of(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in parentheses, may have any characters.
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_of_programs_are_found_in_the_system_s_list() {
        let line =
            |flags: &str, name: &str| format!("00000000a1b2c3d4: 00000002 00000000 {flags} 0001 01 12345 {name}");
        let name = Name { user: 1000, process: 42, number: 0 };
        assert_eq!(listening(&line("00010000", "@disco-status-1000-42-0")), Some(name));
        assert_eq!(listening(&line("00000000", "@disco-status-1000-42-0")), None, "a connection");
        assert_eq!(listening(&line("00010000", "/run/disco-status-1000-42-0")), None);
        assert_eq!(listening("Num       RefCount Protocol Flags    Type St Inode Path"), None);
        assert_eq!(listening("00000000a1b2c3d4: 00000003 00000000 00000000 0001 03  1660"), None);
    }
}
