//! Opens the listener of a lane to nodes. Its error names the cause: a process that listens there, or an address of no
//! interface.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::path::Path;

use disco_core::{Error, Result};

use crate::remote::nodes::addresses;

/// The state of a listening socket in the tables of `/proc/net`.
const LISTENS: &str = "0A";

/// Listens on `address`, `HOST:PORT`.
///
/// # Errors
/// The name does not resolve; no interface has the address (the error lists those of the interfaces); another process
/// listens there (the error names it if this user may know).
pub(super) fn listen(address: &str) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let why = match error.kind() {
            ErrorKind::AddrInUse => format!(", where {} listens", listener(address)),
            ErrorKind::AddrNotAvailable => {
                let own: Vec<String> = addresses::of_this_machine().iter().map(ToString::to_string).collect();
                format!(", which is no address of this machine (its addresses: {})", own.join(", "))
            }
            // The standard library's error of a failed lookup has no code of the system.
            _ if error.raw_os_error().is_none() => ", which does not resolve to an address".to_owned(),
            _ => String::new(),
        };
        Error::system(format!("can't listen on {address}{why}"), error)
    })
}

/// The process that listens at the port of `address`, in words.
#[allow(clippy::disallowed_methods, reason = "an address, HOST:PORT")]
fn listener(address: &str) -> String {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.and_then(process_at).unwrap_or_else(|| "another process".to_owned())
}

fn process_at(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let sockets: Vec<String> =
        tables.iter().flat_map(|table| table.lines()).filter_map(|line| socket(line, port)).collect();
    // `/proc/self` is this process once more.
    let is_process = |name: &OsString| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
    let names = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.file_name()).filter(is_process);
    let process =
        names.map(|name| Path::new("/proc").join(name)).find(|process| has_open(process, &sockets).unwrap_or(false))?;
    let name = fs::read_to_string(process.join("comm")).ok()?;
    Some(format!("process {} ({})", process.file_name()?.to_string_lossy(), name.trim()))
}

/// The link of the socket in a line of the system's table, `socket:[inode]`, if it listens at `port`.
#[allow(clippy::disallowed_methods, reason = "a text of the kernel")]
fn socket(line: &str, port: u16) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, at) = words.get(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(at, 16) == Ok(port) && *words.get(3)? == LISTENS;
    is_it.then(|| Some(format!("socket:[{}]", words.get(9)?))).flatten()
}

/// Whether a process, a folder of `/proc`, has one of the sockets open.
fn has_open(process: &Path, sockets: &[String]) -> io::Result<bool> {
    let links = fs::read_dir(process.join("fd"))?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    Ok(links.into_iter().any(|link| sockets.iter().any(|socket| link == Path::new(socket))))
}
