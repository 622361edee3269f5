//! Runs tests in their own processes on the double, and helpers of these tests.

use std::env;
use std::process::Command;
use std::time::Duration;

use disco::function::FromArg;
use disco::{
    Builder, DType, IntoArgs, LaneSession, Placement, Reduction, Scope, Session, Tensor, WorkerContext, block_on,
};
use disco_conformance::Required;

use crate::own_process;

/// Where a test can run: on the double, or on both the double and a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Double,
    Either,
}

/// Whether tests run on this machine's driver and GPUs instead of the double.
pub(crate) fn on_gpus() -> bool {
    env::var_os("DISCO_TEST_GPU").is_some_and(|value| value == "1")
}

/// Whether a test can run here; prints the reason if not.
pub(crate) fn can_run(name: &str, on: On) -> bool {
    let can_run = on == On::Either || !on_gpus();
    if !can_run {
        println!(
            "skipped: {name}: only the double has its devices, faults and counters, and DISCO_TEST_GPU=1 runs tests on GPUs"
        );
    }
    can_run
}

/// Sets the variables that make a process load the double, unless tests run on GPUs.
pub(crate) fn find_the_double(command: &mut Command) {
    if !on_gpus() {
        let folders = [disco_gpu_double::folder(), disco_gpu_double::folder::hip_folder()];
        command.env("LD_LIBRARY_PATH", env::join_paths(folders).unwrap()).env_remove("DISCO_NCCL_LIBRARY");
    }
}

/// Runs the ignored test `name` in a new process that loads the double.
///
/// # Panics
/// The test fails or does not end.
pub(crate) fn run(name: &str, variables: &[(&str, &str)]) {
    own_process::run(name, |command| {
        find_the_double(command);
        command.envs(variables.iter().copied());
    });
}

/// A folder with an NCCL that has no non-blocking communicators.
pub(crate) fn old() -> String {
    use disco_gpu_double::folder::{NAMES, hide, with};
    let later = ["ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommSplit"];
    with("gpu-double-waits", &NAMES, |object| later.into_iter().for_each(|function| hide(object, function)))
        .display()
        .to_string()
}

/// Path of NVRTC, or an empty text if there is none: on the double the file that `DISCO_NVRTC_LIBRARY` names or `cargo
/// xtask check` has fetched, on GPUs any that the search finds.
///
/// # Panics
/// NVRTC is missing, but `DISCO_REQUIRE=nccl` requires it.
pub(crate) fn nvrtc() -> String {
    let file = if on_gpus() {
        disco::nccl::p2p::kernels::nvrtc().ok().map(|nvrtc| nvrtc.file().to_owned())
    } else {
        disco_conformance::nvrtc().map(|file| file.display().to_string())
    };
    assert!(file.is_some() || !Required::from_env().contains("nccl"), "DISCO_REQUIRE: NVRTC is not there");
    file.unwrap_or_default()
}

/// Path of NVRTC for tests that use kernels but don't test compilation: the double's own NVRTC, which compiles nothing,
/// or on GPUs [`nvrtc`].
pub(crate) fn nvrtc_of_the_double() -> String {
    if on_gpus() { nvrtc() } else { disco_gpu_double::folder().join("double.so").display().to_string() }
}

/// Path of NVRTC 13, or an empty text if it was not fetched.
pub(crate) fn nvrtc_13() -> String {
    disco_conformance::nvrtc_13().map(|file| file.display().to_string()).unwrap_or_default()
}

/// Whether [`nvrtc`] was found; prints that the test is skipped if not.
pub(crate) fn has_nvrtc() -> bool {
    let is_there = env::var_os("DISCO_NVRTC_LIBRARY").is_some_and(|file| !file.is_empty());
    if !is_there {
        println!("skipped: NVRTC is not there: `cargo xtask check` fetches it, and DISCO_NVRTC_LIBRARY names one");
    }
    is_there
}

/// A folder with a driver that lacks a function.
pub(crate) fn without(function: &str) -> String {
    use disco_gpu_double::folder::{NAMES, hide, with};
    with(&format!("gpu-double-without-{function}"), &NAMES, |object| hide(object, function)).display().to_string()
}

/// A folder with a HIP that lacks a function.
pub(crate) fn hip_without(function: &str) -> String {
    use disco_gpu_double::folder::{HIP_NAMES, hide, with};
    let folder = format!("gpu-double-hip-without-{function}");
    with(&folder, &HIP_NAMES, |object| hide(object, function)).display().to_string()
}

/// A folder without NVML.
pub(crate) fn without_nvml() -> String {
    use disco_gpu_double::folder::{NAMES, with};
    let others: Vec<&str> = NAMES.into_iter().filter(|name| !name.contains("nvidia-ml")).collect();
    with("gpu-double-without-nvml", &others, |_| {}).display().to_string()
}

/// A session of threads with short deadlines for collectives and connecting.
pub(crate) fn session(workers: usize) -> LaneSession {
    let limit = Duration::from_millis(500);
    Builder::threads(workers).collective_deadline(limit).connect_deadline(limit).start().unwrap()
}

/// A session as of [`session`], connected by NCCL.
pub(crate) fn connected(workers: usize) -> LaneSession {
    let session = session(workers);
    block_on(session.init_ccl("nccl", &[])).unwrap();
    session
}

/// Calls a function, and returns its results on all workers.
pub(crate) fn answers<T: FromArg + Send>(session: &LaneSession, name: &str, args: impl IntoArgs) -> Vec<T> {
    block_on(async { session.get_all(&session.call(name, args).await?).await }).unwrap()
}

/// Waits for the work of the worker's stream, up to the worker's deadline.
pub(crate) fn synchronize(ctx: &mut WorkerContext) -> disco::Result<()> {
    let deadline = ctx.deadline();
    ctx.queue().synchronize(deadline)
}

/// A copy of a tensor on the host, after a wait for the worker's stream.
pub(crate) fn to_host(ctx: &mut WorkerContext, tensor: &Tensor) -> disco::Result<Tensor> {
    let host = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
    ctx.queue().copy_out(&host, tensor)?;
    synchronize(ctx).map(|()| host)
}

/// The text of the error.
pub(crate) fn text<T>(result: disco::Result<T>) -> String {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error.to_string(),
    }
}

/// Connects the workers, and returns the sum of 1, 2, … over them.
pub(crate) async fn sum(session: &dyn Session) -> disco::Result<f32> {
    let workers = session.world().size();
    let ones: Vec<f32> = (1..=workers).map(|number| number as f32).collect();
    let there = session.empty(DType::F32, [1], Placement::All).await?;
    session.scatter(&Tensor::from_slice(&ones, [workers as i64])?, &there).await?;
    session.all_reduce(&there, &there, Reduction::Sum, Scope::World).await?;
    let host = Tensor::zeros(DType::F32, [1])?;
    session.copy_from_worker_0(&host, &there).await?;
    session.sync_all().await?;
    Ok(host.to_vec::<f32>()?[0])
}

/// Asserts that the session works after connecting again.
pub(crate) fn works_again(session: &dyn Session) {
    block_on(async {
        session.init_ccl("nccl", &[]).await.unwrap();
        let workers = session.world().size();
        assert_eq!(sum(session).await.unwrap(), (workers * (workers + 1) / 2) as f32);
    });
}
