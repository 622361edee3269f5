//! Sessions as the environment says: what `disco run` sets.

use std::io::{self, Write as _};
use std::path::PathBuf;

use disco_core::env::Variable;
use disco_core::session::LaneSession;
use disco_core::{Error, Result};

use crate::{Builder, SessionKind};

/// What `DISCO_SESSION`, `DISCO_WORKERS`, `DISCO_GROUPS`, `DISCO_NODES`, `DISCO_LISTEN`, `DISCO_LOG_DIR`, `DISCO_BACKEND` and `DISCO_DEVICES` say.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where workers live; default nodes where there are several, else [`SessionKind::of`] the backend.
    pub session: SessionKind,
    /// Number of workers; default 1 a node.
    pub workers: usize,
    /// Number of groups; default 1.
    pub groups: usize,
    /// Number of machines, this one included; default 1.
    pub nodes: usize,
    /// Where other nodes connect; default any port of the loopback.
    pub listen: Option<String>,
    /// A folder for files with what each worker prints that is a process; default none.
    pub log_dir: Option<PathBuf>,
    /// Backend for `init_ccl`; default `local`.
    pub backend: String,
    /// Each worker's device, for `init_ccl`; default none: worker i takes device i.
    pub devices: Vec<i32>,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable that is no number, or a kind of session that there is not.
    pub fn from_env() -> Result<Self> {
        Self::read(Variable::read)
    }

    /// A session of these settings. One of nodes prints to standard error the command that joins them, and a warning where it is reached
    /// from this machine only.
    pub fn builder(&self) -> Builder {
        let builder = Builder::new(self.session, self.workers).groups(self.groups);
        #[cfg(target_os = "linux")]
        let builder = match &self.log_dir {
            Some(folder) => builder.log_dir(folder),
            None => builder,
        };
        #[cfg(target_os = "linux")]
        if self.session == SessionKind::Nodes {
            let builder = builder.over(self.nodes).announce(|announcement| {
                let (nodes, address, command) = (announcement.nodes, announcement.address, announcement.command());
                let mut text = format!("disco: waiting for {nodes} more; on each: {command}\n");
                if address.ip().is_loopback() {
                    text += &format!(
                        "disco: only this machine reaches {address}; other machines join with `--listen 0.0.0.0:{}`, or \
                         DISCO_LISTEN\n",
                        address.port()
                    );
                }
                // A program whose standard error is closed goes on.
                _ = io::stderr().write_all(text.as_bytes());
                Ok(())
            });
            return match &self.listen {
                Some(address) => builder.listen(address),
                None => builder,
            };
        }
        builder
    }

    fn read(variable: impl Fn(&'static str) -> Variable<'static>) -> Result<Self> {
        let number = |name, default| Ok::<_, Error>(variable(name).number()?.unwrap_or(default));
        let text = |name| Ok::<_, Error>(variable(name).text()?.map(str::to_owned));
        let kind = |name: String| name.parse().map_err(|error| Error::invalid(format!("DISCO_SESSION={error}")));
        let backend = text("DISCO_BACKEND")?.unwrap_or_else(|| "local".into());
        let nodes = number("DISCO_NODES", 1)?;
        let usual = if nodes > 1 { SessionKind::Nodes } else { SessionKind::of(&backend) };
        let session = text("DISCO_SESSION")?.map_or(Ok(usual), kind)?;
        let ordinal = |text: &str| text.parse().ok().filter(|ordinal| *ordinal >= 0);
        let devices = variable("DISCO_DEVICES").list("devices", "0,1", ordinal)?;
        let (workers, groups) = (number("DISCO_WORKERS", nodes)?, number("DISCO_GROUPS", 1)?);
        let (listen, log_dir) = (text("DISCO_LISTEN")?, variable("DISCO_LOG_DIR").path());
        Ok(Self { session, workers, groups, nodes, listen, log_dir, backend, devices })
    }
}

/// Starts the session that the environment asks for; see [`Settings`].
///
/// # Errors
/// As [`Settings::from_env`] and [`Builder::start`].
pub fn from_env() -> Result<LaneSession> {
    Settings::from_env()?.builder().start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(|name| Variable::new(name, vars.iter().find(|var| var.0 == name).map(|var| var.1.into())))
    }

    #[test]
    fn an_empty_environment_is_one_local_thread() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.workers, settings.groups, settings.backend.as_str()), (1, 1, "local"));
        assert_eq!(settings.session, SessionKind::Threads);
        assert_eq!(read(&[("DISCO_DEVICES", "2, 0")]).unwrap().devices, [2, 0]);
        assert_eq!(read(&[("DISCO_BACKEND", "mpi")]).unwrap().session, SessionKind::Processes);
        let nodes = read(&[("DISCO_NODES", "2")]).unwrap();
        assert_eq!((nodes.session, nodes.workers, nodes.listen), (SessionKind::Nodes, 2, None));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let text = |vars| read(vars).unwrap_err().to_string();
        assert_eq!(text(&[("DISCO_WORKERS", "four")]), "DISCO_WORKERS=`four` is no number");
        assert_eq!(text(&[("DISCO_DEVICES", "0,x")]), "DISCO_DEVICES=`0,x` are no devices; they read `0,1`");
        assert_eq!(
            text(&[("DISCO_SESSION", "mpi")]),
            "DISCO_SESSION=`mpi`: the kinds of session are: threads, processes, nodes"
        );
    }
}
