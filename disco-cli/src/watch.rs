//! The background process of `disco run` that tells the user if the program has ended without reading the settings.
//!
//! ```text
//! disco run ──▶ disco watch --detach ──▶ disco watch   waits for a datagram, or for the end of the program
//!     │ then becomes
//!     ▼
//!  the program ── reads the settings: a datagram ──▲
//! ```
//!
//! The process between them ends at once, so that the program, which knows nothing of a child, has none.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{self, Command, ExitCode, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::log;

/// Tell the user if the program of `disco run` ends without reading the settings
#[derive(Args)]
#[command(hide = true)]
pub(crate) struct Watch {
    /// Start the watching process and end
    #[arg(long)]
    detach: bool,
    /// The process of the program
    process: i32,
    /// The program's name
    program: OsString,
}

/// A process that watches this one.
pub(crate) struct Watcher(SocketAddr);

impl Watcher {
    /// Starts the process that watches this one, which is about to become `program`. `command` tells the program where to say
    /// that it has read the settings.
    ///
    /// # Errors
    /// The system refuses the socket or the process.
    pub(crate) fn start(command: &mut Command, program: &OsStr) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("disco-run-{}-{}", process::id(), now.as_nanos());
        let address = SocketAddr::from_abstract_name(&name)?;
        let socket = UnixDatagram::bind_addr(&address)?;
        let mut watch = this(process::id().to_string().as_ref(), program)?;
        watch.arg("--detach").stdin(OwnedFd::from(socket)).stdout(Stdio::null()).status()?;
        command.env(disco::internal::READ_SETTINGS, name);
        Ok(Self(address))
    }

    /// Ends the process without a message, because this process has not become the program.
    pub(crate) fn cancel(&self) {
        // Fails if the process has ended.
        _ = UnixDatagram::unbound().and_then(|socket| socket.send_to_addr(&[0], &self.0));
    }
}

fn this(process: &OsStr, program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    if log::is_json() {
        command.args(["--log-format", "json"]);
    }
    command.args(["watch".as_ref(), process]).arg(program);
    Ok(command)
}

impl Watch {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.detach {
            this(self.process.to_string().as_ref(), &self.program)?.spawn()?;
            return Ok(ExitCode::SUCCESS);
        }
        let socket = UnixDatagram::from(io::stdin().as_fd().try_clone_to_owned()?);
        let process = Pid::from_raw(self.process).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process {
            poll(&mut [PollFd::new(&socket, PollFlags::IN), PollFd::new(&process, PollFlags::IN)], None)?;
        }
        socket.set_nonblocking(true)?;
        if socket.recv(&mut [0]).is_err() {
            let program = self.program.display();
            let text = format!(
                "`{program}` has ended without reading the settings of `disco run`; a program reads them with \
                 `disco::from_env()` or `Settings::from_env()`"
            );
            log::tell("disco", &text);
        }
        Ok(ExitCode::SUCCESS)
    }
}
