//! The launch of a kernel on a CUDA device.
//!
//! This file was compiled, and has not run on a GPU. The kernels have run on threads of the host (`tests/kernels.rs`).

#![allow(unsafe_code)]

use std::sync::OnceLock;

use candle_core::backend::BackendStorage as _;
use candle_core::cuda_backend::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg as _};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaDType, CudaStorage, WrapErr as _};
use candle_core::{CudaDevice, DType, Error, Result, Storage};
use disco_nccl::p2p::kernels::MACHINE;
use half::{bf16, f16};

use super::launch::{KERNELS, Launch, THREADS};
use super::{Scope, Sizes, other_types};

/// The name by which candle keeps the module with a device.
const MODULE: &str = "disco-attention";

/// The attention of all tokens, in the order of the queries.
///
/// # Errors
/// As [`attention`](super::attention()).
pub(super) fn compute(scope: &Scope<'_>, sizes: &Sizes, storages: [&CudaStorage; 3]) -> Result<CudaStorage> {
    let dtype = storages[0].dtype();
    if storages.iter().any(|storage| storage.dtype() != dtype) {
        return Err(other_types());
    }
    match dtype {
        DType::F32 => launch::<f32>(scope, sizes, storages),
        DType::F16 => launch::<f16>(scope, sizes, storages),
        DType::BF16 => launch::<bf16>(scope, sizes, storages),
        _ => Err(other_types()),
    }
}

fn launch<T: CudaDType + DeviceRepr>(
    scope: &Scope<'_>,
    sizes: &Sizes,
    storages: [&CudaStorage; 3],
) -> Result<CudaStorage> {
    let launch = Launch::of(scope, sizes, storages[0].dtype())?;
    let device = &storages[0].device;
    let (plan, words) = scope.plan.uploaded.as_ref().ok_or_else(elsewhere)?.storage_and_layout();
    let plan = there(&plan, device)?.as_cuda_slice::<u32>()?.slice(words.start_offset()..);
    let sinks = scope.sinks.map(|sinks| sinks.uploaded.storage_and_layout());
    let sinks = sinks.as_ref().map(|(sinks, _)| there(sinks, device)?.as_cuda_slice::<f32>()).transpose()?;
    let slice = |index: usize| {
        let (start, end) = sizes.ranges[index];
        Ok::<_, Error>(storages[index].as_cuda_slice::<T>()?.slice(start..end))
    };
    let (query, keys, values) = (slice(0)?, slice(1)?, slice(2)?);
    let function = device.get_or_load_custom_func(launch.kernel, MODULE, ptx()?)?;
    // SAFETY: the kernel writes all elements, because the plan has all tokens and all heads of the queries.
    let mut output = unsafe { device.alloc::<T>(query.len())? };
    let mut builder = function.builder();
    builder.arg(&query).arg(&keys).arg(&values).arg(&plan).arg(&mut output);
    builder.arg(&launch.tokens).arg(&launch.words).arg(&launch.window).arg(&launch.cap);
    match &sinks {
        Some(sinks) => builder.arg(*sinks),
        None => builder.arg(&0u64),
    };
    let config = LaunchConfig { grid_dim: launch.grid, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: these are the parameters of the kernel. By `Sizes::of`, the plan's tokens and heads are those of the queries,
    // and its blocks are among those of keys and values.
    unsafe { builder.launch(config) }.w()?;
    Ok(T::wrap_cuda_slice(output, device.clone()))
}

/// Memory that has to be on a device.
fn there<'a>(storage: &'a Storage, device: &CudaDevice) -> Result<&'a CudaStorage> {
    match storage {
        Storage::Cuda(there) if there.device.id() == device.id() => Ok(there),
        _ => Err(elsewhere()),
    }
}

fn elsewhere() -> Error {
    Error::Msg("the plan or the sinks of attention to blocks are not on the device of the queries".into())
}

/// As [`prepare`](super::prepare()).
pub(super) fn prepare(device: &CudaDevice) -> Result<()> {
    let [(_, _, kernel), ..] = KERNELS;
    device.get_or_load_custom_func(kernel, MODULE, ptx()?).map(drop)
}

/// The kernels as PTX of NVRTC's oldest architecture, which the driver compiles for the device. They are compiled once in a
/// process.
///
/// # Errors
/// The log of NVRTC.
fn ptx() -> Result<&'static str> {
    static PTX: OnceLock<String> = OnceLock::new();
    if let Some(ptx) = PTX.get() {
        return Ok(ptx);
    }
    let options = CompileOptions {
        name: Some("attention.cu".into()),
        options: vec!["--std=c++17".into()],
        ..CompileOptions::default()
    };
    let compiled = compile_ptx_with_opts([MACHINE, include_str!("attention.cu")].concat(), options).w()?;
    Ok(PTX.get_or_init(|| compiled.to_src()))
}
