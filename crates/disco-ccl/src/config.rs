//! `ncclConfig_t` in the layout of NCCL 2.17. Newer libraries accept the older layout: they read `size` bytes, and
//! interpret the fields as version `version` defines them.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

/// The configuration of a new communicator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
}

/// The version with exactly these fields: 2.17.
const CONFIG_VERSION: c_uint = 21700;
/// `NCCL_CONFIG_UNDEF_INT`: the library's default.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// For a blocking communicator: calls return when they are complete.
    pub(crate) fn blocking() -> Self {
        Self { blocking: 1, ..Self::non_blocking() }
    }

    /// For a non-blocking communicator: a call may return [`IN_PROGRESS`](crate::abi::Code::IN_PROGRESS), and
    /// `ncclCommGetAsyncError` tells when it is complete.
    pub fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: CONFIG_VERSION,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: ptr::null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn field_offsets_match_the_c_struct() {
        let offsets = [
            offset_of!(Config, size),
            offset_of!(Config, magic),
            offset_of!(Config, version),
            offset_of!(Config, blocking),
            offset_of!(Config, cga_cluster_size),
            offset_of!(Config, min_ctas),
            offset_of!(Config, max_ctas),
            offset_of!(Config, net_name),
            size_of::<Config>(),
        ];
        assert_eq!(offsets, [0, 8, 12, 16, 20, 24, 28, 32, 40]);
    }
}
