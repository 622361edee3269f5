//! The place of this process among the tasks of a launcher.

use std::ffi::OsString;

use super::table::{Host, LAUNCHERS, Launcher};
use crate::env::Variable;
use crate::error::{Error, Result};

/// First port of sessions whose launcher names no port.
const FIRST_PORT: u16 = 20_000;
/// Number of those ports. Ports from 32768 on are the system's for outgoing connections.
const PORTS: u64 = 12_000;

/// The place that a launcher gave this process, by the variables of its environment.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The launcher's name.
    pub launcher: &'static str,
    /// Number of this task, from 0.
    pub rank: usize,
    /// Number of tasks. None if the launcher passes it by other means than variables.
    pub size: Option<usize>,
    /// Number of tasks of this machine, as far as it follows from the variables.
    pub local_size: Option<usize>,
    /// Number of machines.
    pub nodes: Option<usize>,
    /// Name or address of the machine of task 0.
    pub host: Option<String>,
    /// Distinguishes the jobs of a user: a text of letters, digits, `.`, `-` and `_`.
    pub job: String,
    /// Whether MPI may have been started by this launcher.
    pub starts_mpi: bool,
}

impl Place {
    /// The place of this process, or none without a launcher. If launchers have started one another, the first one of the
    /// table counts: torchrun, then those of MPI, then Slurm and the others.
    ///
    /// # Errors
    /// A variable is not a number, or two variables contradict each other.
    pub fn from_env() -> Result<Option<Self>> {
        Self::read(&|name| std::env::var_os(name))
    }

    /// The place of this process among the ranks of MPI, or none without a launcher that starts ranks. Variables of
    /// other launchers are ignored.
    ///
    /// # Errors
    /// As [`Place::from_env`].
    pub fn of_mpi_from_env() -> Result<Option<Self>> {
        Self::of(&|name| std::env::var_os(name), |launcher| launcher.starts_mpi)
    }

    /// The place that the variables of an environment describe, for tests of environments.
    ///
    /// # Errors
    /// As [`Place::from_env`].
    pub fn read(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        Self::of(variable, |_| true)
    }

    fn of(variable: &dyn Fn(&str) -> Option<OsString>, is_meant: impl Fn(&Launcher) -> bool) -> Result<Option<Self>> {
        let environment = Environment(variable);
        let mut meant = LAUNCHERS.iter().filter(|launcher| is_meant(launcher));
        meant.find(|launcher| environment.is_of(launcher)).map(|launcher| environment.place(launcher)).transpose()
    }

    /// Whether the launcher has started several tasks, as far as it follows from the variables.
    pub fn is_one_of_several(&self) -> bool {
        self.size.is_some_and(|size| size > 1)
    }

    /// Whether all tasks are on this machine, as far as it follows from the variables.
    pub fn is_one_machine(&self) -> bool {
        self.nodes == Some(1) || (self.size.is_some() && self.size == self.local_size)
    }

    /// The port of task 0 for the other tasks, the same for all tasks of the job.
    pub fn port(&self) -> u16 {
        let hash = self.job.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        FIRST_PORT + (hash % PORTS) as u16
    }
}

struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

/// A number and the variable that has it.
type Number = (&'static str, usize);

impl Environment<'_> {
    fn variable(&self, name: &'static str) -> Variable<'static> {
        Variable::new(name, (self.0)(name))
    }

    fn is_set(&self, name: &&'static str) -> bool {
        self.variable(name) != Variable::new(name, None)
    }

    fn is_of(&self, launcher: &Launcher) -> bool {
        launcher.rank.iter().any(|name| self.is_set(name))
            && launcher.needs.iter().all(|name| self.is_set(name))
            && launcher.block.is_none_or(|(index, size)| self.is_set(&index) && self.is_set(&size))
            && launcher.equal.iter().all(|(a, b)| (self.0)(a) == (self.0)(b))
    }

    /// The first of these variables that is set.
    fn number(&self, names: &[&'static str]) -> Result<Option<Number>> {
        let Some(name) = names.iter().find(|name| self.is_set(name)) else { return Ok(None) };
        Ok(self.variable(name).number()?.map(|number| (*name, number)))
    }

    fn place(&self, launcher: &Launcher) -> Result<Place> {
        let [rank, size, local_rank, local_size, nodes] =
            [launcher.rank, launcher.size, launcher.local_rank, launcher.local_size, launcher.nodes]
                .map(|names| self.number(names));
        let (Some(rank), size, local_rank, local_size, nodes) = (rank?, size?, local_rank?, local_size?, nodes?) else {
            return Err(Error::invalid(format!("{} has set no rank", launcher.name)));
        };
        let rank = match launcher.block {
            None => rank,
            Some((index, tasks)) => self.in_block(launcher, rank, size, (index, tasks))?,
        };
        let below = |a: Option<Number>, b: Option<Number>, what: &str| match (a, b) {
            (Some(a), Some(b)) if a.1 >= b.1 => Err(contradiction(launcher, a, b, what)),
            _ => Ok(()),
        };
        below(Some(rank), size, "the rank must be below the number of tasks")?;
        below(local_rank, local_size, "the rank on the machine must be below the machine's number of tasks")?;
        let by_machine = "some platforms set the variables of torchrun for each machine instead of each process; start one \
                          process for each worker with torchrun, or set DISCO_WORKERS and start the machines with `disco run \
                          --nodes` and `disco worker`";
        below(local_rank, size, by_machine)?;
        match (local_size, nodes, size) {
            (Some(local), _, Some(size)) if local.1 > size.1 => {
                return Err(contradiction(launcher, local, size, by_machine));
            }
            (_, Some(nodes), Some(size)) if nodes.1 > size.1 => {
                return Err(contradiction(launcher, nodes, size, "each machine has one task at least"));
            }
            _ => {}
        }
        Ok(Place {
            launcher: launcher.name,
            rank: rank.1,
            size: size.map(|size| size.1),
            local_size: local_size.map(|size| size.1),
            nodes: nodes.map(|nodes| nodes.1),
            host: self.host(&launcher.host)?,
            job: self.job(launcher),
            starts_mpi: launcher.starts_mpi,
        })
    }

    /// The number of a task, by its number in its block.
    fn in_block(
        &self,
        launcher: &Launcher,
        rank: Number,
        size: Option<Number>,
        (index, tasks): (&'static str, &'static str),
    ) -> Result<Number> {
        let number = |name| Ok::<_, Error>((name, self.variable(name).number::<usize>()?.unwrap_or(0)));
        let (index, tasks) = (number(index)?, number(tasks)?);
        if rank.1 >= tasks.1 {
            return Err(contradiction(
                launcher,
                rank,
                tasks,
                "the index must be below the number of tasks of each block",
            ));
        }
        let whole = index.1.saturating_mul(tasks.1).saturating_add(rank.1);
        match size.filter(|size| whole >= size.1) {
            Some(size) => Err(contradiction(launcher, index, size, "there are not so many blocks")),
            None => Ok((rank.0, whole)),
        }
    }

    fn host(&self, host: &Host) -> Result<Option<String>> {
        let text = |name| Ok::<_, Error>(self.variable(name).text()?.map(str::to_owned));
        Ok(match host {
            Host::Unknown => None,
            Host::Name(name) => text(name)?,
            Host::FirstOf(name) => text(name)?.map(|list| first_host(&list)),
            Host::Pod { job, subdomain } => {
                text(job)?.zip(text(subdomain)?).map(|(job, domain)| format!("{job}-0.{domain}"))
            }
        })
    }

    #[allow(clippy::disallowed_methods, reason = "a set of characters")]
    fn job(&self, launcher: &Launcher) -> String {
        let value = |name: &&'static str| (self.0)(name).map(|value| value.to_string_lossy().into_owned());
        let values = launcher.job.iter().filter_map(value).collect::<Vec<_>>().join("-");
        let is_plain = |character: char| character.is_ascii_alphanumeric() || "._".contains(character);
        values.chars().map(|character| if is_plain(character) { character } else { '-' }).collect()
    }
}

fn contradiction(launcher: &Launcher, a: Number, b: Number, why: &str) -> Error {
    let (Launcher { name, .. }, (a, x), (b, y)) = (launcher, a, b);
    Error::invalid(format!("{a}={x} and {b}={y}, variables of {name}, contradict each other: {why}"))
}

/// The first machine of a list in Slurm's notation: `a[01-3,7]-x,b` starts with `a01-x`.
#[allow(clippy::disallowed_methods, reason = "a text of Slurm")]
fn first_host(list: &str) -> String {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].strip_prefix('[') {
            None => return host,
            Some(numbers) => {
                let number = numbers.find(['-', ',', ']']).unwrap_or(numbers.len());
                host.push_str(&numbers[..number]);
                rest = numbers.split_once(']').map_or("", |(_, rest)| rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment as it was captured: one `NAME=VALUE` a line.
    fn read(environment: &str) -> Result<Option<Place>> {
        let find = |name: &str| {
            let mut lines = environment.lines().filter_map(|line| line.trim().split_once('='));
            lines.find(|(other, _)| *other == name).map(|(_, value)| value.into())
        };
        Place::read(&find)
    }

    fn place(environment: &str) -> Place {
        read(environment).unwrap().unwrap()
    }

    /// Launcher, rank, size, tasks of the machine, machines, host of task 0.
    type Summary = (&'static str, usize, Option<usize>, Option<usize>, Option<usize>, Option<String>);

    fn summary(environment: &str) -> Summary {
        let Place { launcher, rank, size, local_size, nodes, host, .. } = place(environment);
        (launcher, rank, size, local_size, nodes, host)
    }

    const SRUN: &str = "SLURM_JOB_ID=7\nSLURM_STEP_ID=2\nSLURM_NTASKS=4\nSLURM_STEP_NUM_TASKS=4\nSLURM_PROCID=3\nSLURM_LOCALID=1\n\
                        SLURM_STEP_NUM_NODES=2\nSLURM_STEP_TASKS_PER_NODE=2(x2)\nSLURM_STEP_NODELIST=dn[1-2]\nSLURM_NODEID=1";
    const TORCHRUN: &str = "RANK=5\nWORLD_SIZE=8\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=4\nGROUP_RANK=1\nGROUP_WORLD_SIZE=2\n\
                            MASTER_ADDR=node1\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=none";

    #[test]
    fn the_variables_of_each_launcher_give_the_place() {
        let host = |name: &str| Some(name.to_owned());
        assert_eq!(summary(TORCHRUN), ("torchrun", 5, Some(8), Some(4), Some(2), host("node1")));
        assert_eq!(summary(SRUN), ("Slurm's srun", 3, Some(4), None, Some(2), host("dn1")));
        let pmi2 = format!("{SRUN}\nPMI_FD=5\nPMI_RANK=3\nPMI_SIZE=4\nPMI_JOBID=7.2");
        assert_eq!(summary(&pmi2), ("Slurm's srun", 3, Some(4), None, Some(2), host("dn1")));
        let hydra = "PMI_FD=9\nPMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2";
        assert_eq!(summary(hydra), ("the process manager of MPI (PMI)", 1, Some(2), Some(2), None, None));
        // `mpiexec` inside of a task of Slurm.
        let inside = format!("{hydra}\n{SRUN}");
        assert_eq!(summary(&inside), ("the process manager of MPI (PMI)", 1, Some(2), Some(2), None, None));
        let mpirun = "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=3\nOMPI_COMM_WORLD_LOCAL_RANK=0\n\
                      OMPI_COMM_WORLD_LOCAL_SIZE=3\nPMIX_RANK=0\nPMIX_NAMESPACE=prterun-a@1";
        assert_eq!(summary(mpirun), ("Open MPI's mpirun", 0, Some(3), Some(3), None, None));
        assert_eq!(summary("PMIX_RANK=2\nPMIX_NAMESPACE=x"), ("PMIx", 2, None, None, None, None));
        let lws = "LWS_WORKER_INDEX=1\nLWS_GROUP_SIZE=2\nLWS_LEADER_ADDRESS=lws-0.lws.default";
        assert_eq!(
            summary(lws),
            ("a LeaderWorkerSet of Kubernetes", 1, Some(2), None, Some(2), host("lws-0.lws.default"))
        );
        let job = "JOB_COMPLETION_INDEX=1\nDISCO_NODES=2\nJOB_NAME=train\nSUBDOMAIN=workers";
        assert_eq!(summary(job), ("an indexed job of Kubernetes", 1, Some(2), None, Some(2), host("train-0.workers")));
        let set = "JOB_COMPLETION_INDEX=1\nJOB_INDEX=2\nJOB_COMPLETIONS=3\nDISCO_NODES=9\n\
                   JOBSET_COORDINATOR=train-workers-0-0.train";
        let first = host("train-workers-0-0.train");
        assert_eq!(summary(set), ("a JobSet of Kubernetes", 7, Some(9), None, Some(9), first));
        // Flux and PALS may serve PMIx, too.
        let flux = "PMIX_RANK=1\nPMIX_NAMESPACE=x\nFLUX_TASK_RANK=1\nFLUX_JOB_SIZE=2\nFLUX_TASK_LOCAL_ID=1\n\
                    FLUX_JOB_NNODES=1\nFLUX_JOB_ID=f1";
        assert_eq!(summary(flux), ("Flux", 1, Some(2), None, Some(1), None));
        for none in ["", "SLURM_PROCID=0\nSLURM_NTASKS=4\nSLURM_JOB_ID=7", "RANK=1", "WORLD_SIZE=2"] {
            assert_eq!(read(none).unwrap(), None, "{none}");
        }
    }

    #[test]
    fn variables_of_torchrun_do_not_hide_ranks_of_mpi() {
        let find = |name: &str| {
            let variables =
                [("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "pod"), ("PMI_RANK", "1"), ("PMI_SIZE", "4")];
            variables.into_iter().find(|variable| variable.0 == name).map(|variable| variable.1.into())
        };
        let place = Place::of(&find, |launcher| launcher.starts_mpi).unwrap().unwrap();
        assert_eq!((place.rank, place.size), (1, Some(4)));
    }

    #[test]
    fn one_machine_is_known_by_the_number_of_machines_or_of_its_tasks() {
        assert!(!place(SRUN).is_one_machine() && !place(TORCHRUN).is_one_machine());
        assert!(place(&SRUN.replace("NUM_NODES=2", "NUM_NODES=1")).is_one_machine());
        assert!(
            place("RANK=0\nWORLD_SIZE=2\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=localhost").is_one_machine()
        );
        assert!(!place("PMIX_RANK=0").is_one_machine() && !place("PMIX_RANK=0").is_one_of_several());
    }

    #[test]
    fn variables_that_contradict_each_other_are_an_error_that_names_both() {
        let text = |environment: &str| read(environment).unwrap_err().to_string();
        assert_eq!(
            text(&SRUN.replace("PROCID=3", "PROCID=4")),
            "SLURM_PROCID=4 and SLURM_STEP_NUM_TASKS=4, variables of Slurm's srun, contradict each other: the rank must be below the \
             number of tasks"
        );
        // A platform that sets RANK and WORLD_SIZE for each machine.
        let by_machine = TORCHRUN.replace("WORLD_SIZE=8", "WORLD_SIZE=2").replace("RANK=5", "RANK=1");
        let by_machine = text(&by_machine.replace("GROUP_WORLD_SIZE=2\n", ""));
        assert!(
            by_machine.starts_with(
                "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=2, variables of torchrun, contradict each other: some platforms set the variables"
            ),
            "{by_machine}"
        );
        assert_eq!(text(&TORCHRUN.replace("RANK=5", "RANK=five")), "RANK=`five` is no number");
        let set = "JOB_COMPLETION_INDEX=3\nJOB_INDEX=2\nJOB_COMPLETIONS=3\nDISCO_NODES=9\nJOBSET_COORDINATOR=a";
        assert_eq!(
            text(set),
            "JOB_COMPLETION_INDEX=3 and JOB_COMPLETIONS=3, variables of a JobSet of Kubernetes, contradict each other: the index must \
             be below the number of tasks of each block"
        );
        let few = set.replace("INDEX=3", "INDEX=1").replace("NODES=9", "NODES=7");
        assert!(text(&few).starts_with("JOB_INDEX=2 and DISCO_NODES=7, variables of"), "{}", text(&few));
    }

    #[test]
    fn all_tasks_of_a_job_have_one_port_and_those_of_another_job_have_another() {
        let port = |job: &str| place(&SRUN.replace("JOB_ID=7", &format!("JOB_ID={job}"))).port();
        assert_eq!(port("7"), place(&SRUN.replace("PROCID=3", "PROCID=0")).port());
        assert_ne!(port("7"), port("8"));
        assert!((FIRST_PORT..FIRST_PORT + PORTS as u16).contains(&port("9")));
    }

    #[test]
    fn the_first_host_of_a_list_is_read_in_slurm_s_notation() {
        let hosts = ["dn1", "dn1,dn2", "dn[1-2]", "n[007-9,12],x", "r[1,2]c[3-4]-ib", "a-b.c[5]"];
        assert_eq!(hosts.map(first_host), ["dn1", "dn1", "dn1", "n007", "r1c3-ib", "a-b.c5"]);
    }
}
