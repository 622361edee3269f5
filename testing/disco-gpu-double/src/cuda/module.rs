//! Modules. Each module contains all kernels, whatever image was loaded.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use super::abi::{Code, Function, Module};
use super::device::Device;
use super::kernel::{KERNELS, Kernel};
use crate::handles::Handles;

/// The device of each module. The handle of a function is the handle of its module plus the number of the kernel, from
/// 1.
static MODULES: Handles<&'static Device> = Handles::new(0x8_0000_0000);

/// The bits of a function's handle that contain the number of the kernel.
const KERNEL_NUMBER_MASK: usize = 0xf;

const _: () = assert!(KERNELS.len() <= KERNEL_NUMBER_MASK, "the mask has room for all kernels");

/// `cuModuleLoadData`.
pub(crate) fn load(device: &'static Device) -> Module {
    MODULES.insert(Arc::new(device))
}

/// `cuModuleUnload`: handles of its functions become invalid.
pub(crate) fn unload(module: Module) -> Result<(), Code> {
    MODULES.remove(module).map(drop).ok_or(Code::INVALID_HANDLE)
}

/// `cuModuleGetFunction`.
pub(crate) fn function(module: Module, name: &CStr) -> Result<Function, Code> {
    MODULES.find(module).ok_or(Code::INVALID_HANDLE)?;
    let number = KERNELS.iter().position(|(known, _)| *known == name).ok_or(Code::NOT_FOUND)?;
    Ok(ptr::without_provenance_mut::<c_void>(module.addr() + number + 1))
}

/// The kernel of a function, and the device of its module.
pub(crate) fn kernel(function: Function) -> Result<(Kernel, &'static Device), Code> {
    let module = ptr::without_provenance_mut(function.addr() & !KERNEL_NUMBER_MASK);
    let device = MODULES.find(module).ok_or(Code::INVALID_HANDLE)?;
    let number = (function.addr() & KERNEL_NUMBER_MASK).checked_sub(1).ok_or(Code::INVALID_HANDLE)?;
    let (_, kernel) = KERNELS.get(number).ok_or(Code::INVALID_HANDLE)?;
    Ok((*kernel, *device))
}
