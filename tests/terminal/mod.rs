//! Programs whose standard output is a terminal.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// What a program prints on a terminal.
pub(crate) fn output(mut program: Command) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut child = program.stdout(Stdio::from(terminal)).stderr(Stdio::null()).spawn().unwrap();
    // It has the last copies of the terminal.
    drop(program);
    let (mut master, mut said, mut chunk) = (File::from(master), Vec::new(), [0; 1024]);
    // In place of its end there is an error.
    while let Ok(count @ 1..) = master.read(&mut chunk) {
        said.extend_from_slice(&chunk[..count]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(said).unwrap()
}
