//! Why a script on a host fails, in words.

use std::process::ExitStatus;
use std::time::Duration;

use anyhow::anyhow;
use disco::error::ProcessEnd;

use super::{Phase, Remote};
use crate::run::script::status;

/// The exit status of ssh for its own failures.
const SSH_FAILED: i32 = 255;

impl Remote {
    /// Why the script has ended with this status, which is no success. Prints held output.
    pub(in crate::run) fn failure(&mut self, ended: ExitStatus, folder: &str, program: &str) -> anyhow::Error {
        let why = self.cut_off(ended).unwrap_or_else(|| self.reason(ended, folder, program));
        self.print_held();
        anyhow!("{}: {why}", self.name)
    }

    /// Why the script has ended, or ssh has not reached the host.
    fn reason(&mut self, ended: ExitStatus, folder: &str, program: &str) -> String {
        let end = ProcessEnd::from(ended);
        match (self.phase, ended.code()) {
            (Phase::Connecting, _) => self.refusal(end),
            (Phase::Shell | Phase::Copying, Some(status::NO_COPY)) => {
                format!("`{program}` can't be copied to its cache folder; its shell has printed the reason")
            }
            (Phase::Shell, Some(status::NO_FOLDER)) => {
                format!("there is no folder `{folder}`; make it there, or name another one by --host-dir FOLDER")
            }
            (Phase::Shell, Some(status::NO_PROGRAM)) => {
                format!(
                    "there is no program `{program}` in its folder `{folder}`; install it there, or copy it by --copy"
                )
            }
            (Phase::Program, Some(status::NOT_EXECUTABLE)) => {
                format!("`{program}` can't be executed there; it may be for another kind of processor")
            }
            (Phase::Program, Some(code @ 129..)) => {
                let end = ProcessEnd::Signaled { signal: code - 128, core_dumped: false };
                format!("`{program}` ended: {end}")
            }
            (Phase::Program, _) => format!("`{program}` ended: {end}"),
            _ => format!("its shell ended: {end}"),
        }
    }

    /// Why the host is cut off, if ssh itself has failed after it had reached the host, or was killed.
    pub(in crate::run) fn cut_off(&self, ended: ExitStatus) -> Option<String> {
        let end = ProcessEnd::from(ended);
        match ended.code() {
            None => Some(format!("its ssh client ended: {end}")),
            Some(SSH_FAILED) if self.phase != Phase::Connecting => {
                Some(format!("its ssh client has lost the connection ({end})"))
            }
            _ => None,
        }
    }

    /// Why ssh has not reached a shell of the host, with a hint.
    fn refusal(&mut self, end: ProcessEnd) -> String {
        let held = std::mem::take(&mut self.held);
        let lines = held.iter().map(|(_, line)| String::from_utf8_lossy(line).trim().trim_end_matches('.').to_owned());
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        if lines.is_empty() {
            return format!("ssh ended without a message: {end}");
        }
        let said = lines.join("; ");
        let host = &self.host;
        let hint = [
            (
                "Permission denied",
                format!("permit a key that needs no password: `ssh-copy-id {host}`, or load it by `ssh-add`"),
            ),
            (
                "Host key verification failed",
                format!("log in once by `ssh {host}`, and compare and accept the host's key"),
            ),
            ("Could not resolve hostname", "correct the name, or give the host an entry in ~/.ssh/config".to_owned()),
            (
                "Connection refused",
                "start sshd there, or set its port in ~/.ssh/config or by --ssh 'ssh -p PORT'".to_owned(),
            ),
            ("timed out", "the host is not up, or a firewall drops the packets".to_owned()),
        ];
        match hint.iter().find(|(text, _)| said.contains(text)) {
            Some((_, hint)) => format!("ssh failed: {said}; {hint}"),
            None => format!("ssh failed: {said} ({end})"),
        }
    }

    /// That the script has not come far enough within `limit`.
    pub(in crate::run) fn late(&self, limit: Duration) -> anyhow::Error {
        let what = match self.phase {
            Phase::Connecting => "ssh has not reached a shell",
            Phase::Copying => "the program's file has not been copied",
            _ => "its shell has not started the program",
        };
        anyhow!("{}: {what} within {limit:?}", self.name)
    }
}
