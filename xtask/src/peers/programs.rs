//! The programs of the comparison: ours, and drivers of the peers, which are compiled against the peers' headers.

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
const PEERS: [&str; 5] = ["mpich", OPEN_MPI, "impi-rt", "apache-tvm-ffi", "apache-tvm"];
const OPEN_MPI: &str = "openmpi";

pub(crate) const TVM_VERSION: &str = "0.27.0.post1";
const TVM_FFI: &str = "apache-tvm-ffi-0.1.15.post2/tvm_ffi";

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
    pub(crate) tvm: Option<PathBuf>,
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
        let report = |name: &str, made: Result<PathBuf>| {
            made.inspect_err(|error| eprintln!("== {name} is left out: {error:#}")).ok()
        };
        let mpis = MPIS.iter().filter_map(|mpi| Some((mpi, report(mpi.name, mpi.build(&folder, true))?))).collect();
        Ok(Self { disco: disco(&root())?, tvm: report("TVM", tvm(&folder)), mpis })
    }
}

/// The driver of MPI for the Open MPI of any machine: versions 4 and 5 have one ABI. Fetches the library to compile it.
///
/// # Errors
/// The library can't be fetched, or the compiler fails.
pub(crate) fn ranks_of_open_mpi() -> Result<PathBuf> {
    libraries::fetch_wheels(&[OPEN_MPI]);
    let folder = root().join("target/peers");
    fs::create_dir_all(&folder)?;
    let mpi = MPIS.iter().find(|mpi| mpi.folder.starts_with(OPEN_MPI)).context("it is among the peers")?;
    mpi.build(&folder, false)
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

/// Compiles `source` with include and library folders.
fn compile(compiler: &str, source: &str, program: &Path, args: &[String]) -> Result<PathBuf> {
    let source = root().join("xtask/src/peers").join(source);
    libraries::run(Command::new(compiler).args(["-O2", "-w", "-rdynamic", "-o"]).arg(program).arg(source).args(args))?;
    Ok(program.to_owned())
}

fn tvm(folder: &Path) -> Result<PathBuf> {
    let cache = libraries::cache().canonicalize()?;
    let (tvm, ffi) = (cache.join(format!("apache-tvm-{TVM_VERSION}/tvm")), cache.join(TVM_FFI));
    let support = folder.join("include/tvm/support");
    fs::create_dir_all(&support)?;
    fs::write(support.join("io.h"), include_str!("tvm_io.h"))?;
    fs::write(support.join("serializer.h"), "#pragma once\n")?;
    let includes = [
        folder.join("include"),
        tvm.join("include"),
        ffi.join("include"),
        ffi.join("include/dlpack"),
        ffi.join("3rdparty/dlpack/include"),
    ];
    let mut args = vec!["-std=c++17".to_owned()];
    args.extend(includes.iter().map(|folder| format!("-I{}", folder.display())));
    for lib in [tvm.join("lib"), ffi.join("lib")] {
        args.extend([format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display())]);
    }
    let libraries = ["-Wl,--no-as-needed", "-ltvm_runtime_extra", "-ltvm_runtime", "-ltvm_ffi", "-ldl", "-lpthread"];
    args.extend(libraries.map(str::to_owned));
    compile("c++", "tvm.cc", &folder.join("tvm"), &args)
}

impl Mpi {
    /// Compiles the program, which finds the library in the cache if it `is_bound`, else where the launcher says.
    fn build(&self, folder: &Path, is_bound: bool) -> Result<PathBuf> {
        let cache = libraries::cache().canonicalize()?;
        let lib = cache.join(self.folder).join("lib").display().to_string();
        let include = cache.join(self.headers).join("include").display().to_string();
        let (option, of) = if is_bound { ("rpath", self.folder) } else { ("rpath-link", self.name) };
        // With `-fPIC`, the program has no copies of the library's constants, whose sizes are those of a version.
        let [include, folders] = [format!("-I{include}"), format!("-L{lib}")];
        let args =
            ["-fPIC".to_owned(), include, folders, format!("-l:{}", self.library), format!("-Wl,-{option},{lib}")];
        compile("cc", "ranks.c", &folder.join(format!("ranks-{of}")), &args)
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
