//! The variables of each launcher, as data.

/// The variables that a launcher sets for each task. Each list has alternatives: the first one that is set counts.
#[derive(Debug)]
pub(super) struct Launcher {
    /// The name for users.
    pub(super) name: &'static str,
    /// Variables without which the launcher did not start this process, in addition to `rank`.
    pub(super) needs: &'static [&'static str],
    /// Number of this task.
    pub(super) rank: &'static [&'static str],
    /// If tasks are numbered in blocks of equal size: the number of this task's block, and the size of a block. Both are
    /// needed.
    pub(super) block: Option<(&'static str, &'static str)>,
    /// Number of tasks.
    pub(super) size: &'static [&'static str],
    /// Number of this task among those of this machine.
    pub(super) local_rank: &'static [&'static str],
    /// Number of tasks of this machine.
    pub(super) local_size: &'static [&'static str],
    /// Number of machines.
    pub(super) nodes: &'static [&'static str],
    /// The machine of task 0.
    pub(super) host: Host,
    /// Variables that together distinguish two jobs of one user on the same machines.
    pub(super) job: &'static [&'static str],
    /// Pairs of variables that have equal values, else another launcher has set one of them.
    pub(super) equal: &'static [(&'static str, &'static str)],
    /// Whether MPI may have been started by this launcher.
    pub(super) starts_mpi: bool,
}

/// How a launcher names the machine of task 0.
#[derive(Debug)]
pub(super) enum Host {
    /// It does not.
    Unknown,
    /// In this variable.
    Name(&'static str),
    /// As the first of the machines in this variable, in Slurm's notation `a[1-3,7],b`.
    FirstOf(&'static str),
    /// As pod 0 of an indexed job: the values of these variables as `JOB-0.SUBDOMAIN`. Programs set both by the
    /// manifest.
    Pod { job: &'static str, subdomain: &'static str },
}

const NONE: Launcher = Launcher {
    name: "",
    needs: &[],
    rank: &[],
    block: None,
    size: &[],
    local_rank: &[],
    local_size: &[],
    nodes: &[],
    host: Host::Unknown,
    job: &[],
    equal: &[],
    starts_mpi: false,
};

/// All launchers. The first one that has started this process counts: `torchrun` runs inside of Slurm, and Slurm starts
/// ranks of MPI.
pub(super) const LAUNCHERS: [Launcher; 12] = [
    // torch/distributed/run.py; also Kubeflow's PyTorchJob and Ray Train.
    Launcher {
        name: "torchrun",
        needs: &["WORLD_SIZE", "MASTER_ADDR"],
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        nodes: &["GROUP_WORLD_SIZE"],
        host: Host::Name("MASTER_ADDR"),
        job: &["TORCHELASTIC_RUN_ID", "MASTER_PORT"],
        ..NONE
    },
    Launcher {
        name: "Open MPI's mpirun",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
        starts_mpi: true,
        ..NONE
    },
    // `srun --mpi=pmi2`. A process manager that runs inside of a task of Slurm has other numbers.
    Launcher {
        name: "Slurm's srun",
        needs: &["PMI_SIZE", "SLURM_STEP_NUM_TASKS"],
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["SLURM_LOCALID"],
        nodes: &["SLURM_STEP_NUM_NODES"],
        host: Host::FirstOf("SLURM_STEP_NODELIST"),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        equal: &[("PMI_SIZE", "SLURM_STEP_NUM_TASKS"), ("PMI_RANK", "SLURM_PROCID")],
        starts_mpi: true,
        ..NONE
    },
    // Of MPICH and Intel MPI.
    Launcher {
        name: "the process manager of MPI (PMI)",
        needs: &["PMI_SIZE"],
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        job: &["PMI_JOBID"],
        starts_mpi: true,
        ..NONE
    },
    // A batch script has SLURM_PROCID, too. The variables of the step are those of `srun`; those of the job describe
    // the allocation.
    Launcher {
        name: "Slurm's srun",
        needs: &["SLURM_STEP_NUM_TASKS"],
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS"],
        local_rank: &["SLURM_LOCALID"],
        nodes: &["SLURM_STEP_NUM_NODES"],
        host: Host::FirstOf("SLURM_STEP_NODELIST"),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        starts_mpi: true,
        ..NONE
    },
    Launcher {
        name: "Flux",
        rank: &["FLUX_TASK_RANK"],
        size: &["FLUX_JOB_SIZE"],
        local_rank: &["FLUX_TASK_LOCAL_ID"],
        nodes: &["FLUX_JOB_NNODES"],
        job: &["FLUX_JOB_ID"],
        starts_mpi: true,
        ..NONE
    },
    Launcher {
        name: "PALS",
        rank: &["PALS_RANKID"],
        size: &["PALS_SIZE"],
        local_rank: &["PALS_LOCAL_RANKID"],
        job: &["PALS_APID"],
        starts_mpi: true,
        ..NONE
    },
    Launcher {
        name: "LSF's jsrun",
        rank: &["JSM_NAMESPACE_RANK"],
        size: &["JSM_NAMESPACE_SIZE"],
        local_rank: &["JSM_NAMESPACE_LOCAL_RANK"],
        local_size: &["JSM_NAMESPACE_LOCAL_SIZE"],
        job: &["LSB_JOBID"],
        starts_mpi: true,
        ..NONE
    },
    Launcher {
        name: "a LeaderWorkerSet of Kubernetes",
        rank: &["LWS_WORKER_INDEX"],
        size: &["LWS_GROUP_SIZE"],
        nodes: &["LWS_GROUP_SIZE"],
        host: Host::Name("LWS_LEADER_ADDRESS"),
        ..NONE
    },
    // Kubernetes sets JOB_COMPLETION_INDEX only; the manifest sets the other variables (`deploy/job-set.yaml`).
    Launcher {
        name: "a JobSet of Kubernetes",
        rank: &["JOB_COMPLETION_INDEX"],
        block: Some(("JOB_INDEX", "JOB_COMPLETIONS")),
        size: &["DISCO_NODES"],
        nodes: &["DISCO_NODES"],
        host: Host::Name("JOBSET_COORDINATOR"),
        job: &["JOBSET_COORDINATOR"],
        ..NONE
    },
    // The same holds here.
    Launcher {
        name: "an indexed job of Kubernetes",
        rank: &["JOB_COMPLETION_INDEX"],
        size: &["DISCO_NODES"],
        nodes: &["DISCO_NODES"],
        host: Host::Pod { job: "JOB_NAME", subdomain: "SUBDOMAIN" },
        ..NONE
    },
    // PMIx tells the number of tasks to its own library only. Other launchers set its variables, too.
    Launcher { name: "PMIx", rank: &["PMIX_RANK"], job: &["PMIX_NAMESPACE"], starts_mpi: true, ..NONE },
];
