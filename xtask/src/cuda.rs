//! Builds `disco-candle` and `disco-models` with their features `cuda`: with nvcc and headers from wheels, and with stubs of the libraries, so that
//! the machine needs neither CUDA nor a GPU. The programs run where the libraries and a driver are: `LD_LIBRARY_PATH`.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::iter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::built::{self, Built, root};
use crate::libraries::{self, Wheel, run};

/// nvcc with all that it reads. The wheels share a folder, which is nvcc's root.
const WHEELS: [Wheel; 5] = [
    part("nvidia-cuda-nvcc", "13.0.88", "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03"),
    part("nvidia-cuda-crt", "13.0.88", "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4"),
    part("nvidia-nvvm", "13.0.88", "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0"),
    part("nvidia-cuda-runtime", "13.0.96", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"),
    part("nvidia-cuda-cccl", "13.0.85", "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649"),
];

/// A wheel with a part of the toolkit.
const fn part(name: &'static str, version: &'static str, sha256: &'static str) -> Wheel {
    Wheel { name, version, sha256, kept: ROOT, is_long: true }
}

/// The folder that the wheels share.
const ROOT: &str = "nvidia/cu13";

/// A library that programs link but builds do not have: that of the driver, and libraries whose wheels are 480 MB.
struct Stub {
    /// The module of cudarc that declares the library's functions.
    module: &'static str,
    /// Its name for the linker, and the name by which programs load it.
    name: &'static str,
    loaded: &'static str,
}

const STUBS: [Stub; 5] = [
    Stub { module: "driver", name: "cuda", loaded: "libcuda.so.1" },
    Stub { module: "cublas", name: "cublas", loaded: "libcublas.so.13" },
    Stub { module: "cublaslt", name: "cublasLt", loaded: "libcublasLt.so.13" },
    Stub { module: "curand", name: "curand", loaded: "libcurand.so.10" },
    Stub { module: "nvrtc", name: "nvrtc", loaded: "libnvrtc.so.13" },
];

/// The compute capability of kernels: that of H100 and H200.
const COMPUTE_CAPABILITY: &str = "90";

/// Arguments of the builds. The check is optimized, too, so that it shares the kernels with the kit: they take most of the
/// time.
const TARGETS: &str = "--release --package disco-candle --package disco-models --features cuda --lib --example attention \
     --example generate --target-dir target/cuda";

/// Lints the crates and the examples `attention` and `generate` with CUDA, and links the examples. The first run takes ten minutes on two cores,
/// half of them for candle's kernels.
///
/// # Errors
/// The toolkit can't be fetched, or cargo fails.
pub(crate) fn check() -> Result<()> {
    let toolkit = Toolkit::fetch()?;
    let lints = format!("clippy --quiet {TARGETS} -- -D warnings");
    let status = toolkit.cargo()?.args(lints.split_whitespace()).status().context("cannot start cargo")?;
    ensure!(status.success(), "cargo {lints}: {status}");
    toolkit.examples().map(|_| ())
}

/// The examples `attention` and `generate` with CUDA.
///
/// # Errors
/// As [`check`].
pub(crate) fn examples() -> Result<Vec<Built>> {
    Toolkit::fetch()?.examples()
}

/// Folders of the toolkit.
struct Toolkit {
    /// The root of nvcc.
    root: PathBuf,
    /// A folder with the folder `lib` of what programs link.
    linked: PathBuf,
}

impl Toolkit {
    /// Fetches the wheels if they are not there, and makes the stubs.
    fn fetch() -> Result<Self> {
        let [nvcc, ..] = &WHEELS;
        let name = format!("cuda-{}", nvcc.version);
        libraries::unpacked_once(&libraries::cache(), &name, |parts| libraries::unpack(&WHEELS, parts))?;
        let toolkit =
            Self { root: libraries::cache().join(name).canonicalize()?, linked: root().join("target/cuda/linked") };
        let lib = toolkit.linked.join("lib");
        fs::create_dir_all(&lib)?;
        let cudart = lib.join("libcudart.so");
        // It may be of another cache.
        if cudart.symlink_metadata().is_ok() {
            fs::remove_file(&cudart)?;
        }
        symlink(toolkit.root.join("lib/libcudart.so.13"), cudart)?;
        let cudarc = sources_of_cudarc()?;
        STUBS.iter().try_for_each(|stub| stub.make(&cudarc, &lib))?;
        Ok(toolkit)
    }

    /// A cargo whose build scripts find the toolkit.
    fn cargo(&self) -> Result<Command> {
        let bin = self.root.join("bin");
        let path = env::var_os("PATH").unwrap_or_default();
        let path: OsString = env::join_paths(iter::once(bin.clone()).chain(env::split_paths(&path)))?;
        let threads = thread::available_parallelism()?;
        let mut command = built::cargo();
        // nvcc of candle's kernels, and of cudarc, which asks it for its version.
        command.env("NVCC", bin.join("nvcc")).env("PATH", path).env("CUDA_COMPUTE_CAP", COMPUTE_CAPABILITY);
        // Where cudarc's build script tells the linker to look.
        command.env("CUDA_HOME", &self.linked).env("CUDAFORGE_THREADS", threads.to_string());
        Ok(command)
    }

    fn examples(&self) -> Result<Vec<Built>> {
        println!("== cargo build {TARGETS}");
        built::build_with(self.cargo()?, &format!("build {TARGETS}"))
    }
}

impl Stub {
    /// Makes a library of the functions that cudarc declares, which do nothing. Their versions do not matter: the
    /// loader takes the default version of a function whose version the program does not name.
    fn make(&self, cudarc: &Path, folder: &Path) -> Result<()> {
        let declarations = cudarc.join("src").join(self.module).join("sys/mod.rs");
        let text = fs::read_to_string(&declarations).with_context(|| format!("{}", declarations.display()))?;
        let source = folder.join(self.name).with_extension("c");
        let functions = functions(&text).into_iter().map(|name| format!("void {name}(void) {{}}\n"));
        fs::write(&source, functions.collect::<String>())?;
        let mut cc = Command::new("cc");
        cc.args(["-w", "-shared", "-fPIC"]).arg(format!("-Wl,-soname,{}", self.loaded)).arg(&source);
        run(cc.arg("-o").arg(folder.join(format!("lib{}.so", self.name))))
    }
}

/// Names of the functions that a module of cudarc declares, some of them for several versions.
fn functions(module: &str) -> BTreeSet<&str> {
    let names = module.split("load::<_F>(\"").skip(1);
    names.filter_map(|rest| Some(rest.split_once('"')?.0)).collect()
}

/// The folder of cudarc's sources.
fn sources_of_cudarc() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Package {
        name: String,
        manifest_path: PathBuf,
    }
    let packages: Vec<Package> = built::packages(&[])?;
    let package = packages.into_iter().find(|package| package.name == "cudarc");
    let manifest = package.context("the workspace does not depend on cudarc")?.manifest_path;
    Ok(manifest.parent().context("cudarc has no folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::functions;

    #[test]
    fn each_function_that_a_module_declares_is_found_once() {
        let module = "load::<_F>(\"cuInit\") }; extern \"C\" { fn cuInit(); } load::<_F>(\"cuMemFree_v2\") load::<_F>(\"cuInit\")";
        assert_eq!(functions(module).into_iter().collect::<Vec<_>>(), ["cuInit", "cuMemFree_v2"]);
    }
}
