//! Sessions configured by environment variables, which `disco run` sets.

#[cfg_attr(not(target_os = "linux"), path = "unsupported.rs")]
pub(crate) mod remote;

use std::path::PathBuf;

use disco_core::env::Variable;
use disco_core::launcher::Place;
use disco_core::session::LaneSession;
use disco_core::{Error, Result, backend};

use crate::{Builder, SessionKind};

/// The backends of host tensors on one machine and on several.
const LOCAL: &str = "local";
const TCP: &str = "tcp";

/// The settings of a session, read from `DISCO_SESSION`, `DISCO_WORKERS`, `DISCO_GROUPS`, `DISCO_NODES`,
/// `DISCO_LISTEN`, `DISCO_HOSTS`, `DISCO_NODE_LAUNCHER`, `DISCO_SPARES`, `DISCO_APART`, `DISCO_LOG_DIR`, `DISCO_BACKEND`
/// and `DISCO_DEVICES`.
///
/// ```no_run
/// use disco::{Result, Settings};
///
/// fn main() -> Result<()> {
///     disco::init();
///     let settings = Settings::from_env()?;
///     // What the program itself decides comes on top.
///     let session = settings.builder().check(true).start()?;
///     disco::block_on(async {
///         session.init_ccl(&settings.backend, &settings.devices).await?;
///         println!("{} workers exchange tensors by {}", session.world().size(), settings.backend);
///         session.shutdown().await
///     })
/// }
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the workers run. Default: nodes if `nodes` is above 1, else processes if `apart` is set, else
    /// [`SessionKind::of`] the backend. Under a
    /// launcher: processes if all tasks are on this machine or are ranks of MPI, else nodes.
    pub session: SessionKind,
    /// Number of workers. Default: 1 per node; under a launcher its number of tasks, without MPI's rank 0 if `apart` is set.
    pub workers: usize,
    /// Number of groups. Default: 1.
    pub groups: usize,
    /// Number of machines, including this one. Default: 1; under a launcher, for sessions of nodes, its number of tasks.
    pub nodes: usize,
    /// Address where other nodes connect. Default: any free port of the loopback address; under a launcher the port that
    /// its tasks know, on all interfaces.
    pub listen: Option<String>,
    /// Machines on which [`node_launcher`](Self::node_launcher) starts the nodes 1, 2, … of a session of nodes. If they are as
    /// many as `nodes`, this machine has the controller alone, and worker 0 is a process of the first of them. Default: none.
    pub hosts: Vec<String>,
    /// The program that starts each node on its host; `disco run --hosts` sets it. Default: none, and nodes are started
    /// by hand.
    pub node_launcher: Option<PathBuf>,
    /// Number of processes that wait to take the places of lost ones; see `ProcessOptions::spares`. Default: 0.
    pub spares: usize,
    /// Whether worker 0 is a process of its own rather than a thread of this process; see `Builder::apart`. Default: false.
    pub apart: bool,
    /// Folder for the output of workers that are processes; see `ProcessOptions::log_dir`. Default: none.
    pub log_dir: Option<PathBuf>,
    /// Backend for `init_ccl`. Default: `tcp` in a session of several nodes, if the program has it; otherwise `local`.
    pub backend: String,
    /// Device of each worker, for `init_ccl`. Default: empty, and the i-th worker of each machine uses device i.
    pub devices: Vec<i32>,
}

/// The tasks of a launcher, of which this process is the first.
#[derive(Debug)]
pub(crate) struct Launched {
    tasks: usize,
    /// The kind of session whose workers are the tasks.
    kind: SessionKind,
    /// The tasks are ranks of MPI.
    are_ranks: bool,
}

impl Settings {
    /// Reads the settings from the environment.
    ///
    /// # Errors
    /// A variable is not a number, not a list of device ordinals, or not a kind of session; variables of a launcher
    /// contradict each other or lack the number of tasks, and neither session, workers nor nodes are set.
    pub fn from_env() -> Result<Self> {
        remote::tell_run();
        Self::current()
    }

    /// The settings in the environment, before the program asks for them.
    pub(crate) fn current() -> Result<Self> {
        const OWN: [&str; 3] = ["DISCO_SESSION", "DISCO_WORKERS", "DISCO_NODES"];
        // Disco's own variables win over those of a launcher.
        let is_set = |name: &&'static str| Variable::read(name) != Variable::new(name, None);
        let place = if OWN.iter().any(is_set) { None } else { Place::from_env()? };
        let launched = remote::launched()?;
        match place {
            Some(place) if place.size.is_none() && launched.is_none() => Err(Error::invalid(format!(
                "{} has started this process as task {}, but its variables do not tell the number of tasks, and the tasks are not \
                 ranks of an MPI library: install one for backend mpi, use another launcher, or set DISCO_SESSION=threads, which \
                 makes each task a program of its own",
                place.launcher, place.rank
            ))),
            _ => Self::read(Variable::read, launched),
        }
    }

    /// A builder with these settings. A session of nodes prints the command that joins the other nodes to standard
    /// error, and a warning if it listens on a loopback address.
    pub fn builder(&self) -> Builder {
        remote::configure(Builder::new(self.session, self.workers).groups(self.groups), self)
    }

    fn read(variable: impl Fn(&'static str) -> Variable<'static>, launched: Option<Launched>) -> Result<Self> {
        let number = |name, default| Ok::<_, Error>(variable(name).number()?.unwrap_or(default));
        let text = |name| Ok::<_, Error>(variable(name).text()?.map(str::to_owned));
        let kind = |name: String| name.parse().map_err(|error| Error::invalid(format!("DISCO_SESSION={error}")));
        let backend = text("DISCO_BACKEND")?;
        let given = text("DISCO_SESSION")?.map(kind).transpose()?;
        let launched = launched.filter(|_| given != Some(SessionKind::Threads));
        let apart = variable("DISCO_APART").flag()?.unwrap_or(false);
        // If worker 0 is a process of its own, rank 0 has no worker.
        let tasks = launched.as_ref().map_or(1, |launched| launched.tasks - usize::from(apart && launched.are_ranks));
        let are_nodes = launched.as_ref().is_some_and(|launched| launched.kind == SessionKind::Nodes);
        let nodes = number("DISCO_NODES", if are_nodes { tasks } else { 1 })?;
        let usual = match &launched {
            _ if nodes > 1 => SessionKind::Nodes,
            Some(launched) => launched.kind,
            None if apart => SessionKind::Processes,
            None => SessionKind::of(backend.as_deref().unwrap_or(LOCAL)),
        };
        let session = given.unwrap_or(usual);
        let ordinal = |text: &str| text.parse().ok().filter(|ordinal| *ordinal >= 0);
        let devices = variable("DISCO_DEVICES").list("devices", "0,1", ordinal)?;
        let (workers, groups) = (number("DISCO_WORKERS", nodes.max(tasks))?, number("DISCO_GROUPS", 1)?);
        let (listen, log_dir) = (text("DISCO_LISTEN")?, variable("DISCO_LOG_DIR").path());
        let spares = number("DISCO_SPARES", 0)?;
        let hosts = variable("DISCO_HOSTS").list("hosts", "a,b", |text| Some(text.to_owned()))?;
        let node_launcher = variable("DISCO_NODE_LAUNCHER").path();
        check_hosts(&hosts, node_launcher.is_some(), nodes, apart)?;
        let usual = if nodes > 1 && backend::find(TCP).is_ok() { TCP } else { LOCAL };
        let backend = backend.unwrap_or_else(|| usual.to_owned());
        Ok(Self {
            session,
            workers,
            groups,
            nodes,
            listen,
            hosts,
            node_launcher,
            spares,
            apart,
            log_dir,
            backend,
            devices,
        })
    }
}

/// Checks that each node but that of this machine, if it has one, has a host.
///
/// # Errors
/// There are too few or too many hosts, or no program that starts the nodes; this machine has the controller alone, and the
/// session is not apart.
fn check_hosts(hosts: &[String], has_launcher: bool, nodes: usize, apart: bool) -> Result<()> {
    let count = hosts.len();
    let why = match has_launcher {
        false if count == 0 => return Ok(()),
        true if count + 1 == nodes || count == nodes && apart => return Ok(()),
        false => "DISCO_NODE_LAUNCHER is not set".to_owned(),
        true if count == nodes => {
            "the nodes are as many, so this machine has no worker, which needs DISCO_APART=1".to_owned()
        }
        true => format!("DISCO_NODES is {nodes}, but with this machine these are {}", count + 1),
    };
    Err(Error::invalid(format!("DISCO_HOSTS names {count} machines: {why}; `disco run --hosts` sets these variables")))
}

/// Starts the session that the environment describes; see [`Settings`].
///
/// ```no_run
/// use disco::Result;
///
/// /// `program` runs with threads, `DISCO_SESSION=processes DISCO_WORKERS=4 program` with processes.
/// fn main() -> Result<()> {
///     disco::init();
///     let session = disco::from_env()?;
///     disco::block_on(session.shutdown())
/// }
/// ```
///
/// # Errors
/// Errors of [`Settings::from_env`] and [`Builder::start`].
pub fn from_env() -> Result<LaneSession> {
    Settings::from_env()?.builder().start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<Settings> {
        read_launched(vars, None)
    }

    fn read_launched(vars: &[(&str, &str)], launched: Option<Launched>) -> Result<Settings> {
        Settings::read(
            |name| Variable::new(name, vars.iter().find(|var| var.0 == name).map(|var| var.1.into())),
            launched,
        )
    }

    #[test]
    fn a_launcher_sets_the_defaults_and_disco_s_variables_win() {
        let settings = |vars, kind| read_launched(vars, Some(Launched { tasks: 4, kind, are_ranks: false })).unwrap();
        let machine = settings(&[], SessionKind::Processes);
        assert_eq!((machine.session, machine.workers, machine.nodes), (SessionKind::Processes, 4, 1));
        let machines = settings(&[], SessionKind::Nodes);
        assert_eq!((machines.session, machines.workers, machines.nodes), (SessionKind::Nodes, 4, 4));
        let eight = settings(&[("DISCO_WORKERS", "8")], SessionKind::Nodes);
        assert_eq!((eight.session, eight.workers, eight.nodes), (SessionKind::Nodes, 8, 4));
        let threads = settings(&[("DISCO_SESSION", "threads")], SessionKind::Processes);
        assert_eq!((threads.session, threads.workers, threads.nodes), (SessionKind::Threads, 1, 1));
        let two = settings(&[("DISCO_WORKERS", "2")], SessionKind::Processes);
        assert_eq!((two.session, two.workers), (SessionKind::Processes, 2));
    }

    #[test]
    fn a_session_apart_has_processes_and_no_worker_on_rank_0_of_mpi() {
        let apart = [("DISCO_APART", "1")];
        let workers = |are_ranks| {
            let launched = Launched { tasks: 4, kind: SessionKind::Processes, are_ranks };
            read_launched(&apart, Some(launched)).unwrap().workers
        };
        assert_eq!([true, false].map(workers), [3, 4]);
        let alone = read(&apart).unwrap();
        assert_eq!((alone.session, alone.workers, alone.apart), (SessionKind::Processes, 1, true));
    }

    #[test]
    fn unset_variables_have_defaults() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.workers, settings.groups, settings.backend.as_str()), (1, 1, "local"));
        assert_eq!(settings.session, SessionKind::Threads);
        let of_nodes = if cfg!(feature = "tcp") { "tcp" } else { "local" };
        assert_eq!(read(&[("DISCO_NODES", "2")]).unwrap().backend, of_nodes);
        assert_eq!(read(&[("DISCO_DEVICES", "2, 0")]).unwrap().devices, [2, 0]);
        assert_eq!(read(&[("DISCO_BACKEND", "mpi")]).unwrap().session, SessionKind::Processes);
        let nodes = read(&[("DISCO_NODES", "2")]).unwrap();
        assert_eq!((nodes.session, nodes.workers, nodes.listen), (SessionKind::Nodes, 2, None));
    }

    #[test]
    fn hosts_are_all_nodes_or_all_but_this_machine() {
        let hosts = |nodes, apart, launcher| {
            let launcher = ("DISCO_NODE_LAUNCHER", launcher);
            read(&[("DISCO_NODES", nodes), ("DISCO_HOSTS", "b,c"), ("DISCO_APART", apart), launcher])
        };
        assert_eq!(hosts("3", "0", "disco").unwrap().hosts, ["b", "c"]);
        assert_eq!(hosts("2", "1", "disco").unwrap().node_launcher, Some("disco".into()));
        let why = |nodes, launcher| hosts(nodes, "0", launcher).unwrap_err().to_string();
        assert!(why("3", "").contains("DISCO_HOSTS names 2 machines: DISCO_NODE_LAUNCHER is not set"));
        assert!(why("2", "disco").contains("so this machine has no worker, which needs DISCO_APART=1"));
        assert!(why("4", "disco").contains("DISCO_NODES is 4, but with this machine these are 3"));
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
