//! Launches of the all-reduce and barrier kernels: the choice of the kernel and its parameters.
//!
//! ```text
//! module    a loaded module of kernels
//! control   the abort flag and the failure report, which the host and the kernels share
//! ```

#![allow(unsafe_code)]

mod control;
mod module;

use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cudarc::driver::sys::CUdevice_attribute::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use disco_ccl::p2p::{self, Preparation, Prepared, STATE_BYTES, Topology, Unfit, Workspace};
use disco_ccl::{CopyKind, Runtime};
use disco_core::{AbortCause, Error, Op, Reduction, Result};

use self::control::ControlWords;
use self::module::Module;
use crate::cuda::{attribute_of, driver};
use crate::p2p::kernels::{self, Architecture, Cause, Failure, Params, Thresholds, VECTOR, grid};

const _: () = assert!(kernels::STATE_BYTES <= STATE_BYTES, "a workspace has room for the kernels' state");

/// Checks that the driver and NVRTC have all functions that the kernels need; returns the version and the file of
/// NVRTC. Compiles nothing.
///
/// # Errors
/// A library or a function is missing.
pub fn readiness() -> Result<String, String> {
    driver::require(driver::PEER_FUNCTIONS)?;
    driver::require(driver::KERNEL_FUNCTIONS)?;
    let nvrtc = kernels::nvrtc().map_err(|unavailable| unavailable.to_string())?;
    let (major, minor) = nvrtc.version();
    Ok(format!("NVRTC {major}.{minor} ({})", nvrtc.file()))
}

/// Checks the variable of the thresholds.
///
/// # Errors
/// The value of the variable is not a number of bytes.
pub(super) fn check_options() -> Result<()> {
    Thresholds::from_env().map(drop)
}

/// Compiles and loads the kernels for a runtime's device.
///
/// # Errors
/// A function of the driver or NVRTC is missing; NVRTC or the driver refuses the kernels; the variable of a threshold
/// is not a number of bytes.
pub(super) fn prepare(runtime: &Arc<Runtime>) -> Preparation {
    driver::require(driver::KERNEL_FUNCTIONS)?;
    LoadedKernels::new(runtime).map(|loaded| Box::new(loaded) as _).map_err(|error| error.to_string())
}

/// Kernels that are loaded on a device, before the ranks have exchanged their memory.
#[derive(Debug)]
struct LoadedKernels {
    module: Module,
    thresholds: Thresholds,
    resident_blocks: u32,
}

/// Kernels of one rank over the ranks' shared memory.
struct Kernels {
    runtime: Arc<Runtime>,
    /// Resources that launches use. The workspace keeps a reference until its stream is done.
    resources: Arc<LaunchResources>,
    thresholds: Thresholds,
    topology: Topology,
    occupancy: grid::Occupancy,
    timeout: Duration,
    /// The parameters that are equal in all launches.
    params: Params,
    /// Size of each rank's shared buffer, in bytes.
    buffer: usize,
    /// The cause of the first abort.
    cause: OnceLock<AbortCause>,
}

struct LaunchResources {
    module: Module,
    control: ControlWords,
}

impl LoadedKernels {
    fn new(runtime: &Arc<Runtime>) -> Result<Self> {
        let thresholds = Thresholds::from_env()?;
        let number = |attribute| attribute_of(runtime.device().ordinal as usize, attribute).map(i32::cast_unsigned);
        let major = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let cubin = kernels::cubin(Architecture::new(major, minor))?;
        let module = Module::load(&cubin)?;
        let resident_blocks =
            module.max_blocks_per_multiprocessor()? * number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        if resident_blocks == 0 {
            return Err(Error::invalid(format!(
                "not one block of the all-reduce kernels fits on {}",
                runtime.device()
            )));
        }
        Ok(Self { module, thresholds, resident_blocks })
    }
}

impl Prepared for LoadedKernels {
    fn terms(&self) -> String {
        let Thresholds { one_shot, one_shot_of_two, two_shot, hybrid_cube_mesh } = self.thresholds;
        format!(
            "one-shot to {one_shot} ({one_shot_of_two} of two ranks), two-shot to {two_shot}, hybrid cube mesh to \
             {hybrid_cube_mesh} bytes"
        )
    }

    fn resident(&self) -> u32 {
        self.resident_blocks
    }

    fn start(
        self: Box<Self>,
        workspace: &Workspace,
        topology: Topology,
        (resident_blocks, ranks_per_device): (u32, u32),
        timeout: Duration,
    ) -> Result<Box<dyn p2p::Kernels>> {
        let runtime = workspace.runtime().clone();
        let resources = Arc::new(LaunchResources { module: self.module, control: ControlWords::new(&runtime)? });
        workspace.keep(Box::new(resources.clone()));
        let (rank, world) = (workspace.rank().index(), workspace.size());
        let each = |at: &dyn Fn(usize) -> *mut u8| {
            std::array::from_fn(|rank| if rank < world { at(rank) as usize as u64 } else { 0 })
        };
        let (near, relay) = topology.near(rank).unwrap_or_default();
        let params = Params {
            data: each(&|rank| workspace.kernels_buffer(rank)),
            state: each(&|rank| workspace.state(rank)),
            abort: ptr::from_ref(resources.control.abort()) as usize as u64,
            report: ptr::from_ref(resources.control.failure_report()) as usize as u64,
            timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
            rank: rank as u32,
            world: world as u32,
            near: near.into(),
            relay: relay as u32,
            ..Params::default()
        };
        let occupancy = grid::Occupancy { resident_blocks, ranks_per_device, max_blocks: grid::DEFAULT_MAX_BLOCKS };
        let (thresholds, buffer, cause) = (self.thresholds, workspace.bytes(), OnceLock::new());
        Ok(Box::new(Kernels { runtime, resources, thresholds, topology, occupancy, timeout, params, buffer, cause }))
    }
}

impl Kernels {
    /// The kernel, the grid and the parameters for an operation, or the reason why no kernel supports it. The choice is
    /// the same on all ranks.
    fn choose(&self, op: &Op) -> Result<(module::Function, grid::Grid, Params), Unfit> {
        let (src, dst, reduction) = match op {
            Op::AllReduce { src, dst, reduction } => (src, dst, reduction),
            Op::Barrier => {
                let grid = grid::barrier(self.occupancy).ok_or(Unfit::Room)?;
                return Ok((self.resources.module.barrier, grid, self.params));
            }
            other => return Err(Unfit::Kind(other.kind())),
        };
        let (input, world, bytes) = (src.as_ref().unwrap_or(dst), self.params.world as usize, dst.byte_len());
        if *reduction != Reduction::Sum {
            return Err(Unfit::Reduction(*reduction));
        }
        if !bytes.is_multiple_of(VECTOR) {
            return Err(Unfit::Multiple(bytes));
        }
        let algorithm = self.thresholds.choose(self.topology, bytes, world, self.buffer).ok_or(Unfit::Bytes(bytes))?;
        let function = self.resources.module.find(algorithm, dst.dtype()).ok_or(Unfit::DType(dst.dtype()))?;
        let grid = grid::grid(algorithm, bytes / VECTOR, world, self.occupancy).ok_or(Unfit::Room)?;
        let (input, output) = (input.data() as usize as u64, dst.data() as usize as u64);
        let params = Params { input, output, count: (bytes / VECTOR) as u32, ..self.params };
        Ok((function, grid, params))
    }

    fn start(&self, function: module::Function, grid: grid::Grid, params: &Params) -> Result<()> {
        // SAFETY: until the stream is done, the workspace keeps the shared memory, the module and the control words,
        // and the runtime keeps the tensors.
        unsafe { function.launch(&self.runtime, grid, params) }
    }

    /// Copies between a tensor and its aligned staging tensor.
    fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: both are device memory of at least `bytes` bytes, which the runtime keeps until the stream has made
        // the copy.
        unsafe { self.runtime.driver().copy(to, from, bytes, CopyKind::OnDevice) }
    }
}

/// Whether input and output start at multiples of [`VECTOR`]. True for a barrier, which has neither.
fn is_aligned(params: &Params) -> bool {
    [params.input, params.output].iter().all(|address| address.is_multiple_of(VECTOR as u64))
}

fn bytes_of(params: &Params) -> usize {
    params.count as usize * VECTOR
}

impl p2p::Kernels for Kernels {
    fn launch(&self, op: &Op) -> Result<Result<(), Unfit>> {
        let (function, grid, params) = match self.choose(op) {
            Ok(launch) => launch,
            Err(why) => return Ok(Err(why)),
        };
        let staging = (!is_aligned(&params)).then(|| self.runtime.alloc(bytes_of(&params)));
        match staging.transpose()? {
            None => self.start(function, grid, &params),
            // The alignment of a tensor may differ between ranks: the peers launch a kernel, so this rank must launch
            // one too.
            Some(staging) => {
                let (address, bytes) = (staging.pointer(), staging.byte_len());
                let pointer = address as usize as u64;
                self.copy(address, params.input as *const u8, bytes)?;
                self.start(function, grid, &Params { input: pointer, output: pointer, ..params })?;
                self.copy(params.output as *mut u8, address, bytes)
            }
        }
        .map(Ok)
    }

    fn needs_allocation(&self, op: &Op) -> bool {
        self.choose(op).is_ok_and(|(_, _, params)| !is_aligned(&params))
    }

    fn check(&self) -> Result<()> {
        let Some(failure) = Failure::of(self.resources.control.failure()) else { return Ok(()) };
        Err(match failure.cause {
            Cause::ABORTED => {
                let cause = self.cause.get().cloned();
                Error::Aborted { cause: cause.unwrap_or_else(|| "the all-reduce kernels were aborted".into()) }
            }
            _ => {
                let (operation, after) = ("all_reduce over peer-to-peer memory".to_owned(), self.timeout);
                Error::Deadline { operation, after, state: failure.to_string() }
            }
        })
    }

    fn abort(&self, cause: &AbortCause) {
        self.cause.get_or_init(|| cause.clone());
        self.resources.control.abort().store(1, Ordering::Release);
    }
}

disco_core::format_as!(Debug for Kernels, |it| "kernels for {}", it.topology);
