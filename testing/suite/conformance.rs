//! The conformance suite over every lane and every backend of this program. Tests have names like
//! `local::all_reduce::bf16::avg` and `threads::frames_arrive_complete_and_in_order_on_all_workers`. Between processes,
//! `local` is tested as `local-processes` and, without a worker in this process, as `local-apart` with tensors in shared memory,
//! and as `local-private` with tensors that peers
//! can't reach.

#![allow(clippy::unwrap_used, reason = "tests")]

mod private;

use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::sync::Arc;

use disco::{Builder, Error, Result, Session, Value, WorkerId, WorkerRange, World};
use disco_channel::nodes::{self, NodeLane};
use disco_channel::processes::{self, Invitation, ProcessLane};
use disco_channel::threads::ThreadLane;
use disco_channel::tvm;
use disco_conformance::{Harness, Runner, SessionSpec, ThreadSessions, lane};
use disco_core::{Channel, Endpoint, Link, worker::WorkerConfig};

/// Number of sub-cases that `local` runs, summed over all workers, so that no case is lost by accident. After an
/// intended change, copy the number from the failure message.
const EXECUTED_BY_LOCAL: usize = 403_630;

/// Workers that are threads of this process.
#[derive(Debug)]
struct Threads;

impl lane::Harness for Threads {
    fn name(&self) -> &str {
        "threads"
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let run = move |worker, endpoint| lane::play(role, worker, endpoint);
        Ok(Box::new(ThreadLane::new(workers, Arc::default(), run)))
    }
}

/// Workers that are processes of this machine and get commands through shared memory or over sockets.
#[derive(Debug)]
struct Processes {
    ring: bool,
}

/// Environment variable with the role of a worker process.
const ROLE: &str = "DISCO_TEST_ROLE";

impl lane::Harness for Processes {
    fn name(&self) -> &str {
        if self.ring { "processes" } else { "processes-over-sockets" }
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let mut options = processes::Options::new(WorkerConfig::new(World::new(1, 1)?));
        options.launch = options.launch.env(ROLE, role.name());
        options.ring = self.ring;
        Ok(Box::new(ProcessLane::new(workers, Arc::default(), options)))
    }
}

/// Workers of nodes. The nodes are threads of this process.
#[derive(Debug)]
struct Nodes {
    name: &'static str,
    /// Whether each worker has its own node. Otherwise, one node has all workers.
    one_worker_each: bool,
    /// Fan-out of the tree: largest number of nodes to which one end sends commands.
    fan_out: usize,
    /// Whether workers are processes. Otherwise, they are threads.
    processes: bool,
}

impl lane::Harness for Nodes {
    fn name(&self) -> &str {
        self.name
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let count = workers.len();
        let config = WorkerConfig::new(World::new(1, 1)?);
        let token = nodes::Token::random()?;
        let mut options = nodes::Options::new(if self.one_worker_each { count } else { 1 }, token.clone(), config);
        options.fan_out = self.fan_out;
        let processes = self.processes;
        options.announce = nodes::Announce::new(move |announcement| {
            for _ in 0..announcement.nodes {
                let join = nodes::JoinOptions::new(announcement.address.to_string(), token.clone());
                std::thread::spawn(move || {
                    nodes::serve(&join, |assignment, shared, output| {
                        let workers = assignment.workers;
                        if !processes {
                            let run = move |worker, endpoint| lane::play(role, worker, endpoint);
                            return Ok(Arc::new(ThreadLane::new(workers, shared, run)));
                        }
                        let mut options = processes::Options::new(assignment.config);
                        options.launch = options.launch.env(ROLE, role.name());
                        options.output = output;
                        Ok(Arc::new(ProcessLane::new(workers, shared, options)))
                    })
                });
            }
            Ok(())
        });
        Ok(Box::new(NodeLane::new(workers, Arc::default(), options)))
    }
}

/// Workers behind TVM's dialect: processes over socket pairs, or nodes of one worker, which are threads of this process.
#[derive(Debug)]
struct Tvm {
    nodes: bool,
}

impl lane::Harness for Tvm {
    fn name(&self) -> &str {
        if self.nodes { "tvm-nodes" } else { "tvm-processes" }
    }

    fn lane(&self, workers: WorkerRange, role: lane::Role) -> Result<Box<dyn Channel>> {
        let config = WorkerConfig::new(World::new(8, 1)?);
        if self.nodes {
            let mut options = tvm::NodeOptions::new(workers.len(), config);
            let count = workers.len();
            options.announce = Arc::new(move |address| {
                for _ in 0..count {
                    let join = tvm::JoinOptions::new(address.to_string());
                    std::thread::spawn(move || {
                        tvm::join(&join, |workers, _| {
                            let run = move |worker, endpoint| play_after_start(role, worker, endpoint);
                            Ok(Arc::new(ThreadLane::new(workers, Arc::default(), run)))
                        })
                    });
                }
            });
            return Ok(Box::new(tvm::Lane::nodes(workers, options)));
        }
        let mut options = tvm::Options::new(config);
        options.program = std::env::current_exe().map_err(|error| Error::system("this program", error))?;
        options.arguments = Vec::new();
        options.variables = vec![(ROLE.into(), role.name().into())];
        Ok(Box::new(tvm::Lane::processes(workers, options)))
    }

    fn cannot(&self, case: &str) -> Option<&'static str> {
        Some(match case {
            "frames_arrive_complete_and_in_order_on_all_workers" => "TVM's workers reply to four commands only",
            "a_failure_is_a_reply_like_any_other" => "TVM's commands have no numbers, which failures repeat",
            "notices_arrive_without_a_command" => "TVM's workers send no notices",
            "a_full_lane_refuses_frames_and_reports_room"
            | "workers_answer_a_cancellation_and_hear_that_it_is_settled"
            | "an_abort_overtakes_frames"
            | "an_abort_is_accepted_by_a_full_lane"
            | "a_signalled_shutdown_overtakes_frames" => "TVM's workers can't be aborted",
            "close_names_stuck_workers_and_their_functions" | "progress_counts_received_and_finished_commands" => {
                "TVM's workers do not report their progress"
            }
            "workers_use_the_store_while_they_execute_a_frame" | "a_store_handle_is_valid_only_in_its_epoch" => {
                "TVM's workers have no store"
            }
            "a_worker_that_ends_early_is_lost_with_its_number" | "lost_workers_do_not_delay_the_others"
                if self.nodes =>
            {
                "the workers of a node are a world of their own, so all of them have number 0"
            }
            _ => return None,
        })
    }
}

/// Answers the lane's first command, then plays a role.
fn play_after_start(role: lane::Role, worker: WorkerId, mut endpoint: impl Endpoint) -> Result<()> {
    let seq = endpoint.recv()?.seq();
    endpoint.reply(seq, Ok(Value::None))?;
    lane::play(role, worker, endpoint)
}

/// Serves as a worker behind TVM's dialect. The command line is `ID WORKERS GROUPS 0 0`.
fn serve_tvm() -> ExitCode {
    let socket = || std::fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let role = std::env::var(ROLE).unwrap().parse().unwrap();
    let worker = WorkerId::new(std::env::args().nth(1).unwrap().parse().unwrap());
    let link = Arc::new(Link::bare(Arc::default()));
    let endpoint = tvm::Endpoint::new((worker, WorkerId::new(0)), socket(), socket(), link, 1 << 30);
    play_after_start(role, worker, endpoint).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// Serves as a worker, in the role of the environment, in a process that was started as one.
fn serve(invitation: Result<Invitation>) -> ExitCode {
    let served = invitation.and_then(|invitation| {
        let role = std::env::var(ROLE).map_err(|_| Error::invalid(format!("{ROLE} is not set")))?.parse()?;
        processes::serve(&invitation, |worker, _, endpoint| lane::play(role, worker, endpoint))
    });
    served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

/// The built-in backend between processes.
#[derive(Debug)]
struct LocalProcesses {
    apart: bool,
}

impl Harness for LocalProcesses {
    fn name(&self) -> &str {
        if self.apart { "local-apart" } else { "local-processes" }
    }

    fn backend(&self) -> &str {
        "local"
    }

    fn worlds(&self) -> Vec<World> {
        let worlds = if self.apart { [(2, 1), (4, 2)] } else { [(3, 1), (4, 2)] };
        worlds.map(|(workers, groups)| World::new(workers, groups).unwrap()).to_vec()
    }

    fn start(&self, spec: &SessionSpec) -> Result<Box<dyn Session>> {
        let builder = Builder::processes(spec.world.size()).groups(spec.world.groups()).check(spec.check);
        let builder = builder.apart(self.apart);
        Ok(Box::new(builder.collective_deadline(spec.collective_deadline).start()?))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn detects_mismatches(&self) -> bool {
        true
    }

    fn detects_dropped_peers(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some() {
        return Invitation::take().map_or_else(serve_tvm, serve);
    }
    disco::init();
    Runner::new()
        .backend(ThreadSessions::of("local").exact().detecting_mismatches().detecting_dropped_peers())
        .backend(LocalProcesses { apart: false })
        .backend(LocalProcesses { apart: true })
        .backend(private::sessions())
        .lane(Threads)
        .lane(Processes { ring: true })
        .lane(Processes { ring: false })
        .lane(Nodes { name: "nodes", one_worker_each: false, fan_out: nodes::Options::FAN_OUT, processes: false })
        .lane(Nodes { name: "nodes-of-one", one_worker_each: true, fan_out: nodes::Options::FAN_OUT, processes: false })
        .lane(Nodes {
            name: "nodes-of-processes",
            one_worker_each: false,
            fan_out: nodes::Options::FAN_OUT,
            processes: true,
        })
        .lane(Nodes { name: "tree-of-nodes", one_worker_each: true, fan_out: 2, processes: false })
        .lane(Nodes { name: "chain-of-nodes", one_worker_each: true, fan_out: 1, processes: false })
        .lane(Nodes { name: "chain-of-processes", one_worker_each: true, fan_out: 1, processes: true })
        .lane(Tvm { nodes: false })
        .lane(Tvm { nodes: true })
        .executes("local", EXECUTED_BY_LOCAL)
        // Requirements of other test programs: those of `testing/suite/processes`, of `disco-cli` and of the backends' crates.
        .required_elsewhere(["ffi", "mpi", "nccl", "slurm", "ssh", "torchrun", "tsan", "tvm"])
        .main()
}
