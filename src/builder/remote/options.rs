//! The options of sessions whose workers are outside of this process.

use std::path::PathBuf;

use disco_channel::nodes::{Announce, Token};
use disco_channel::processes::Launch;
use disco_core::{Error, Result, World};

use crate::remote::start_nodes::NodeLauncher;
use crate::{Builder, SessionKind};

/// The nodes of a session, and how they join. [`Builder::node_options`] sets them.
///
/// ```no_run
/// use std::path::Path;
///
/// use disco::{Builder, Result, Token};
///
/// /// Waits for three other machines with eight workers each.
/// fn main() -> Result<()> {
///     disco::init();
///     let token = Token::read(Path::new("session.token"))?;
///     let session = Builder::nodes(4, 8)
///         .node_options(|nodes| {
///             nodes.listen = Some("0.0.0.0:4567".into());
///             nodes.token = Some(token);
///         })
///         .start()?;
///     disco::block_on(session.shutdown())
/// }
/// ```
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Number of nodes that share the workers equally, including this one. Default: 2, or that of [`Builder::nodes`].
    pub count: usize,
    /// Whether the workers of a node are threads of the node's process, or processes, whose output the controller prints
    /// with a prefix. Default: processes.
    pub workers: SessionKind,
    /// Makes the session wait for nodes on this `HOST:PORT` instead of starting them; port 0 takes any free port. Needs a
    /// [token](Self::token). Default address: any free port of the loopback address.
    pub listen: Option<String>,
    /// Makes the session wait for nodes instead of starting them. The callback is called with the address once the session
    /// listens; its error fails the start. Needs a [token](Self::token).
    pub announce: Option<Announce>,
    /// The secret that nodes need to join. Default: the token in `DISCO_TOKEN` or in the file `DISCO_TOKEN_FILE`; a random
    /// one if neither is set and this program starts the nodes itself.
    pub token: Option<Token>,
    /// Whether connections to nodes are encrypted. Default: the value of `DISCO_ENCRYPT`, or `true`. Nodes that are started
    /// elsewhere need the same value in `DISCO_ENCRYPT` or [`JoinOptions::encrypts`](crate::JoinOptions); the controller
    /// refuses others. Without encryption, both ends still prove that they have the [token](Self::token).
    pub encrypts: Option<bool>,
    /// Maximum number of connections to the controller that have not joined as nodes yet, each for at most 5 s. Another
    /// one replaces the oldest. Default: 256, or the number of nodes if that is larger.
    pub max_pending: Option<usize>,
    /// Maximum number of bytes that wait in the controller until one node reads them; a node above it is lost. All nodes
    /// together may have as many times more. Large tensors do not count: they are read from the program's memory. At least
    /// 64 MiB and the [value limit](Builder::value_limit). Default: 64 MiB and twice the sum of 256 MiB and the value
    /// limit, and at least 1 GiB.
    pub max_unsent: Option<usize>,
    /// Largest number of nodes to which this program and each node send commands, at least 1. A session with more other
    /// nodes is a tree, in which nodes relay for nodes. Default: 32.
    pub fan_out: Option<usize>,
    /// Starts the nodes on other machines, instead of this program on this one.
    pub(crate) launcher: Option<NodeLauncher>,
    /// Whether each worker joins as its own node, even if several are on one machine.
    pub(super) one_worker_each: bool,
    pub(super) names: Vec<String>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            count: 2,
            workers: SessionKind::Processes,
            listen: None,
            announce: None,
            token: None,
            encrypts: None,
            max_pending: None,
            max_unsent: None,
            fan_out: None,
            launcher: None,
            one_worker_each: false,
            names: Vec::new(),
        }
    }
}

/// The processes of a session's workers. [`Builder::process_options`] sets them.
///
/// ```
/// use disco::Builder;
///
/// let builder = Builder::processes(4).process_options(|processes| {
///     processes.log_dir = Some("logs".into());
///     processes.spares = 1; // waits to take the place of a lost worker
/// });
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct ProcessOptions {
    /// How the processes are started. Default: this program, with its arguments.
    ///
    /// Another program ([`Launch::program`]) must call [`init`](crate::init) and have the same worker functions. With
    /// [`Launch::elsewhere`], another launcher, such as `mpiexec`, starts the processes on this machine and as this user:
    /// for each worker that is no thread of this process, the callback gets an invitation and passes its
    /// [text](crate::Invitation::text) on to that worker, which [serves](crate::serve) with it, or is
    /// [started](crate::init) with it in `DISCO_WORKER`. The session does not forward the output of these workers.
    pub launch: Option<Launch>,
    /// Appends the output of each worker process N to `FOLDER/N/stdout.log` and `FOLDER/N/stderr.log`, in addition to
    /// printing it. A second run of the program appends to the same files. Default: none.
    ///
    /// Workers that are threads of this process or started by another launcher have no log files. Nodes on other machines
    /// write the files of their workers to [`JoinOptions::log_dir`](crate::JoinOptions).
    pub log_dir: Option<PathBuf>,
    /// Number of worker processes that are started ahead, in the background, and wait to take the places of lost ones; see
    /// [`Session::replace_lost`](crate::Session::replace_lost). A replacement then need not wait for the start of the
    /// program. Another process is started for each that is used or ends. A spare takes the memory of a program that has
    /// reached [`init`](crate::init). For sessions of processes that this program starts. Default: 0.
    pub spares: usize,
}

/// Options of workers outside of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(super) nodes: NodeOptions,
    pub(super) processes: ProcessOptions,
    pub(super) apart: bool,
}

impl Builder {
    /// A session of `nodes` machines with `per_node` workers each. This machine is node 0, and worker 0 is a thread of
    /// this process, unless [`Builder::apart`] makes it a process, too.
    ///
    /// With [`NodeOptions::announce`] or [`NodeOptions::listen`], the session waits for other machines to
    /// [join](crate::join). Without, all nodes are started on this machine, by executing this program again, for trials
    /// and tests. If an MPI launcher has started ranks, the ranks are the workers and join automatically.
    pub fn nodes(nodes: usize, per_node: usize) -> Self {
        // If the product is too large, `start` rejects the number of workers.
        let workers = nodes.saturating_mul(per_node);
        Self::new(SessionKind::Nodes, workers).node_options(|options| options.count = nodes)
    }

    /// Sets [options](NodeOptions) of the session's nodes.
    pub fn node_options(mut self, set: impl FnOnce(&mut NodeOptions)) -> Self {
        set(&mut self.remote.nodes);
        self
    }

    /// Sets [options](ProcessOptions) of workers that are processes.
    pub fn process_options(mut self, set: impl FnOnce(&mut ProcessOptions)) -> Self {
        set(&mut self.remote.processes);
        self
    }

    /// Whether worker 0 is a process of its own, like the other workers, rather than a thread of this process. This process
    /// then outlives any worker: worker 0 is lost, [replaced](crate::Session::replace_lost) and
    /// [resized](crate::Session::resize) away like the others. For sessions of processes, and of nodes whose workers are
    /// processes. Default: false.
    ///
    /// Tensors go to worker 0 and come back by value then, as to other workers: `copy_to_worker_0`, `copy_from_worker_0`,
    /// `broadcast` and `scatter` of a tensor, `set` and `get` copy them through shared memory. The first two return when the
    /// copy is complete.
    ///
    /// Under `srun` or `torchrun`, this process starts worker 0 itself. Under MPI's launcher, rank 0 is the controller and
    /// computes nothing, so `n` workers need `n` + 1 ranks.
    pub fn apart(mut self, apart: bool) -> Self {
        self.remote.apart = apart;
        self
    }

    /// Splits the workers of `world` into the nodes of the session.
    pub(crate) fn split_into_nodes(&self, world: World) -> Result<World> {
        if self.kind == SessionKind::Nodes { world.on_nodes(self.remote.nodes.count) } else { Ok(world) }
    }

    /// Rejects options that do not fit the kind of the session.
    pub(crate) fn check_remote(&self) -> Result<()> {
        self.check_log_dir()?;
        self.check_spares()?;
        self.check_apart()
    }

    /// Rejects [`Builder::apart`] where workers are threads of this process.
    fn check_apart(&self) -> Result<()> {
        let Options { nodes, apart, .. } = &self.remote;
        let workers = match self.kind {
            SessionKind::Threads => "the workers of this session are threads",
            // Ranks of MPI are no threads of this process.
            SessionKind::Nodes if nodes.workers == SessionKind::Threads && !nodes.one_worker_each => {
                "the workers of its nodes are threads"
            }
            _ => return Ok(()),
        };
        if *apart {
            return Err(Error::invalid(format!("`apart` makes worker 0 a process, but {workers}")));
        }
        Ok(())
    }

    /// Rejects log files for workers that are threads: their output is that of the program.
    fn check_log_dir(&self) -> Result<()> {
        let has_processes = match self.kind {
            SessionKind::Threads => false,
            SessionKind::Processes => true,
            SessionKind::Nodes => self.remote.nodes.workers == SessionKind::Processes,
        };
        if let Some(folder) = self.remote.processes.log_dir.as_ref().filter(|_| !has_processes) {
            let folder = folder.display();
            return Err(Error::invalid(format!(
                "log files in {folder} need workers that are processes, but these are threads, whose output is that of the program"
            )));
        }
        Ok(())
    }

    /// Rejects spares that no process could use.
    fn check_spares(&self) -> Result<()> {
        let spares = self.remote.processes.spares;
        let why = match (spares, self.kind) {
            (0, _) | (_, SessionKind::Processes) => return Ok(()),
            (_, SessionKind::Threads) => "threads can't be replaced",
            (_, SessionKind::Nodes) => "nodes stand by themselves (`disco worker --spare`)",
        };
        Err(Error::invalid(format!("{spares} spares need workers that are processes of this machine: {why}")))
    }
}
