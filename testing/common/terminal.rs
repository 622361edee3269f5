//! Runs programs with a terminal as standard output.

#![allow(clippy::unwrap_used, reason = "a test fails")]

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Runs a program with a terminal as standard output and returns its output.
///
/// # Panics
/// The program fails, or the system has no terminal.
pub fn output(mut program: Command) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut child = program.stdout(Stdio::from(terminal)).stderr(Stdio::null()).spawn().unwrap();
    // Closes this process's copies of the terminal, so that reading ends with the child.
    drop(program);
    let (mut master, mut said, mut chunk) = (File::from(master), Vec::new(), [0; 1024]);
    // The end of a terminal is an error (EIO).
    while let Ok(count @ 1..) = master.read(&mut chunk) {
        said.extend_from_slice(&chunk[..count]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(said).unwrap()
}
