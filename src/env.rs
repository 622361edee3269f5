//! Sessions configured by environment variables, which `disco run` sets.

use std::io::{self, Write as _};
use std::path::PathBuf;

use disco_core::env::Variable;
use disco_core::session::LaneSession;
use disco_core::{Error, Result};

use crate::{Builder, SessionKind};

/// The settings of a session, read from `DISCO_SESSION`, `DISCO_WORKERS`, `DISCO_GROUPS`, `DISCO_NODES`,
/// `DISCO_LISTEN`, `DISCO_LOG_DIR`, `DISCO_BACKEND` and `DISCO_DEVICES`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the workers run. Default: nodes if `nodes` is above 1, else [`SessionKind::of`] the backend.
    pub session: SessionKind,
    /// Number of workers. Default: 1 per node.
    pub workers: usize,
    /// Number of groups. Default: 1.
    pub groups: usize,
    /// Number of machines, including this one. Default: 1.
    pub nodes: usize,
    /// Address where other nodes connect. Default: any free port of the loopback address.
    pub listen: Option<String>,
    /// Folder for the output of workers that are processes; see [`Builder::log_dir`]. Default: none.
    pub log_dir: Option<PathBuf>,
    /// Backend for `init_ccl`. Default: `local`.
    pub backend: String,
    /// Device of each worker, for `init_ccl`. Default: empty, and worker i uses device i.
    pub devices: Vec<i32>,
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// A variable is not a number, not a list of device ordinals, or not a kind of session.
    pub fn from_env() -> Result<Self> {
        Self::read(Variable::read)
    }

    /// A builder with these settings. A session of nodes prints the command that joins the other nodes to standard
    /// error, and a warning if it listens on a loopback address.
    pub fn builder(&self) -> Builder {
        let builder = Builder::new(self.session, self.workers).groups(self.groups);
        #[cfg(target_os = "linux")]
        let builder = match &self.log_dir {
            Some(folder) => builder.log_dir(folder),
            None => builder,
        };
        #[cfg(target_os = "linux")]
        if self.session == SessionKind::Nodes {
            let builder = builder.node_count(self.nodes).announce(|announcement| {
                let (nodes, address, command) = (announcement.nodes, announcement.address, announcement.command());
                let mut text = format!("disco: waiting for {nodes} more; on each: {command}\n");
                if address.ip().is_loopback() {
                    text += &format!(
                        "disco: only this machine reaches {address}; other machines join with `--listen 0.0.0.0:{}`, or \
                         DISCO_LISTEN\n",
                        address.port()
                    );
                }
                // A closed standard error is no reason to fail.
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

/// Starts the session that the environment describes; see [`Settings`].
///
/// # Errors
/// Those of [`Settings::from_env`] and [`Builder::start`].
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
    fn unset_variables_have_defaults() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.workers, settings.groups, settings.backend.as_str()), (1, 1, "local"));
        assert_eq!(settings.session, SessionKind::Threads);
        assert_eq!(read(&[("DISCO_DEVICES", "2, 0")]).unwrap().devices, [2, 0]);
        assert_eq!(read(&[("DISCO_BACKEND", "mpi")]).unwrap().session, SessionKind::Processes);
        let nodes = read(&[("DISCO_NODES", "2")]).unwrap();
        assert_eq!((nodes.session, nodes.workers, nodes.listen), (SessionKind::Nodes, 2, None));
    }

    #[test]
    fn an_invalid_variable_is_an_error_that_names_it() {
        let text = |vars| read(vars).unwrap_err().to_string();
        assert_eq!(text(&[("DISCO_WORKERS", "four")]), "DISCO_WORKERS=`four` is no number");
        assert_eq!(text(&[("DISCO_DEVICES", "0,x")]), "DISCO_DEVICES=`0,x` are no devices; they read `0,1`");
        assert_eq!(
            text(&[("DISCO_SESSION", "mpi")]),
            "DISCO_SESSION=`mpi`: the kinds of session are: threads, processes, nodes"
        );
    }
}
