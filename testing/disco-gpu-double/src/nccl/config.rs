//! `ncclConfig_t` of NCCL 2.28. Callers may pass an earlier, shorter version.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::abi::Code;
use super::text;

/// The configuration of a communicator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, missing_docs, reason = "the interface's")]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: *const c_char,
    pub collnet_enable: c_int,
    pub cta_policy: c_int,
    pub shrink_share: c_int,
    pub nvls_ctas: c_int,
    pub n_channels_per_net_peer: c_int,
    pub nvlink_centric_sched: c_int,
}

/// `NCCL_CONFIG_UNDEF_INT`
pub const UNDEFINED: c_int = c_int::MIN;
const MAGIC: c_uint = 0xcafe_beef;
/// Size of the struct in 2.14: up to `blocking`, with padding.
const MIN_BYTES: usize = 24;
/// Upper bound of the size of any version.
const MAX_BYTES: usize = 4096;

impl Config {
    /// `NCCL_CONFIG_INITIALIZER`
    pub fn initializer() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: MAGIC,
            version: 22809,
            blocking: UNDEFINED,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            n_channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
        }
    }

    /// A configuration of a non-blocking communicator.
    pub fn non_blocking() -> Self {
        Self { blocking: 0, ..Self::initializer() }
    }
}

/// Whether the communicator is blocking; `None` if the configuration does not set it or is null.
///
/// # Safety
/// The pointer is null, or points to a configuration whose first word is its size.
pub(crate) unsafe fn blocking(config: *const Config) -> Result<Option<bool>, Code> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller guarantees that the first word is readable.
    let size = unsafe { config.cast::<usize>().read() };
    if !(MIN_BYTES..=MAX_BYTES).contains(&size) || !size.is_multiple_of(align_of::<Config>()) {
        return Err(text::refuse(Code::INVALID_ARGUMENT, format!("ncclConfig_t has no version of {size} bytes")));
    }
    let mut read = Config::initializer();
    let known = size.min(size_of::<Config>());
    // SAFETY: the caller guarantees `size` readable bytes, the destination has as many, and any bytes are valid
    // integers and addresses.
    unsafe { ptr::copy_nonoverlapping(config.cast::<u8>(), ptr::from_mut(&mut read).cast::<u8>(), known) };
    check(&read).map_err(|why| text::refuse(Code::INVALID_ARGUMENT, why))?;
    Ok(if read.version < 21400 || read.blocking == UNDEFINED { None } else { Some(read.blocking != 0) })
}

fn check(config: &Config) -> Result<(), String> {
    let Config { magic, version, blocking, cga_cluster_size, min_ctas, max_ctas, split_share, .. } = *config;
    if magic != MAGIC {
        return Err("ncclConfig_t was not initialized: its magic number is wrong".to_owned());
    }
    if ![UNDEFINED, 0, 1].contains(&blocking) {
        return Err(format!("ncclConfig_t: blocking cannot be {blocking}"));
    }
    if version >= 21700 {
        let is_count = |number: c_int| number == UNDEFINED || number > 0;
        let is_cluster = cga_cluster_size == UNDEFINED || (0..=8).contains(&cga_cluster_size);
        if !is_count(min_ctas) || !is_count(max_ctas) || !is_cluster {
            return Err(format!(
                "ncclConfig_t: minCTAs {min_ctas}, maxCTAs {max_ctas}, cgaClusterSize {cga_cluster_size}"
            ));
        }
    }
    if version >= 21800 && ![UNDEFINED, 0, 1].contains(&split_share) {
        return Err(format!("ncclConfig_t: splitShare cannot be {split_share}"));
    }
    Ok(())
}
