//! The programs of the comparison: ours, and the driver of MPI, which is compiled against the headers of each library.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;

use crate::built::{self, root};
use crate::{libraries, time_limit};

/// Limit of one program.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Wheels of the peers.
const PEERS: [&str; 3] = ["mpich", "openmpi", "impi-rt"];

/// An MPI library of the cache.
pub(crate) struct Mpi {
    pub(crate) name: &'static str,
    folder: &'static str,
    /// The library with the headers of the same ABI.
    headers: &'static str,
    library: &'static str,
    launcher: &'static [&'static str],
    /// Settings to try, as environment variables.
    pub(crate) settings: &'static [&'static [(&'static str, &'static str)]],
}

pub(crate) const MPIS: [Mpi; 3] = [
    Mpi {
        name: "Intel MPI",
        folder: "impi-rt-2021.18.1",
        headers: "mpich-5.0.2",
        library: "libmpi.so.12",
        launcher: &["bin/mpiexec"],
        settings: &[
            &[],
            &[("I_MPI_FABRICS", "shm")],
            &[("I_MPI_FABRICS", "shm"), ("I_MPI_THREAD_YIELD", "2")],
            &[("I_MPI_FABRICS", "shm"), ("I_MPI_THREAD_YIELD", "3")],
            &[("I_MPI_FABRICS", "shm"), ("I_MPI_WAIT_MODE", "1")],
        ],
    },
    Mpi {
        name: "MPICH",
        folder: "mpich-5.0.2",
        headers: "mpich-5.0.2",
        library: "libmpi.so.12",
        launcher: &["bin/mpiexec"],
        settings: &[
            &[],
            &[("MPIR_CVAR_POLLS_BEFORE_YIELD", "10")],
            &[
                ("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "release_gather"),
                ("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM", "release_gather"),
            ],
        ],
    },
    Mpi {
        name: "Open MPI",
        folder: "openmpi-5.0.11",
        headers: "openmpi-5.0.11",
        library: "libmpi.so.40",
        launcher: &["bin/mpirun", "--allow-run-as-root", "--oversubscribe"],
        settings: &[
            &[],
            &[("OMPI_MCA_mpi_yield_when_idle", "1")],
            &[("OMPI_MCA_coll_xhc_priority", "100")],
            &[("OMPI_MCA_coll_acoll_priority", "100")],
            &[("OMPI_MCA_coll_xhc_priority", "100"), ("OMPI_MCA_mpi_yield_when_idle", "1")],
        ],
    },
];

/// Programs that are there. Peers that can't be built are left out, with the reason on standard error.
pub(crate) struct Programs {
    pub(crate) disco: PathBuf,
    pub(crate) mpis: Vec<(&'static Mpi, PathBuf)>,
}

impl Programs {
    /// Fetches the peers' libraries, and builds all programs.
    ///
    /// # Errors
    /// Our programs can't be built.
    pub(crate) fn build() -> Result<Self> {
        libraries::fetch_wheels(&PEERS);
        let folder = root().join("target/peers");
        fs::create_dir_all(&folder)?;
        let build = |mpi: &'static Mpi| {
            let built = mpi.build(&folder);
            let program = built.inspect_err(|error| eprintln!("== {} is left out: {error:#}", mpi.name)).ok()?;
            Some((mpi, program))
        };
        Ok(Self { disco: disco(&root())?, mpis: MPIS.iter().filter_map(build).collect() })
    }
}

/// The command `disco` of the workspace at `root`.
///
/// # Errors
/// It can't be built.
pub(crate) fn disco(root: &Path) -> Result<PathBuf> {
    let mut command = built::cargo();
    command.current_dir(root);
    let built = built::build_with(command, "build --profile bench --package disco-runtime-cli --bin disco")?;
    let found = built.into_iter().find(|built| built.kind == "bin" && built.name == "disco");
    Ok(found.context("cargo has built no program disco")?.file)
}

impl Mpi {
    /// Compiles `ranks.c`, which finds the library in the cache.
    fn build(&self, folder: &Path) -> Result<PathBuf> {
        let cache = libraries::cache().canonicalize()?;
        let lib = cache.join(self.folder).join("lib").display().to_string();
        let include = cache.join(self.headers).join("include").display().to_string();
        let program = folder.join(format!("ranks-{}", self.folder));
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-w", "-o"]).arg(&program).arg(root().join("xtask/src/peers/ranks.c"));
        compiler.args([format!("-I{include}"), format!("-L{lib}"), format!("-l:{}", self.library)]);
        libraries::run(compiler.arg(format!("-Wl,-rpath,{lib}")))?;
        Ok(program)
    }

    /// The command that starts `ranks` ranks of the program.
    pub(crate) fn command(&self, program: &Path, ranks: usize, setting: &[(&str, &str)]) -> Command {
        let folder = libraries::cache().join(self.folder);
        let (launcher, options) = self.launcher.split_first().unwrap_or((&"mpiexec", &[]));
        let mut command = Command::new(folder.join(launcher));
        command.args(options).args(["-n", &ranks.to_string()]).arg(program).envs(setting.iter().copied());
        command
    }

    pub(crate) fn version(&self) -> &'static str {
        self.folder.rsplit('-').next().unwrap_or(self.folder)
    }
}

/// Runs a program to its end and returns its standard output.
///
/// # Errors
/// It fails or reaches its time limit.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    output_within(command, TIMEOUT)
}

/// As [`output`], with another time limit.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<String> {
    let name = format!("{command:?}");
    // A pipe would stay open while a process lives that outlives the program.
    let path = root().join("target/peers/output");
    command.stdin(Stdio::null()).stdout(File::create(&path)?).stderr(Stdio::null());
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    let status = wait(&mut child, limit).with_context(|| name.clone())?;
    let output = fs::read_to_string(&path)?;
    ensure!(status.success(), "{name}: {status}: {output}");
    Ok(output)
}

/// As [`output`], for the last line of output, which is JSON.
pub(crate) fn json<T: DeserializeOwned>(command: &mut Command) -> Result<T> {
    let text = output(command)?;
    let start = text.find('{').context("the program has printed no JSON")?;
    serde_json::from_str(text[start..].trim()).with_context(|| format!("not the expected JSON: {text}"))
}

/// Waits for the exit. Kills the program with its descendants at the limit: a peer that is slow is not a failure to look into,
/// so no stacks are printed.
fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    time_limit::kill(&time_limit::descendants(child.id()));
    child.kill()?;
    child.wait()?;
    bail!("no end within {} s", limit.as_secs())
}
