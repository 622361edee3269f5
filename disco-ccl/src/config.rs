//! `ncclConfig_t`, as much of it as is used: the library reads no further than `size`, and takes fields for what they were at
//! `version`.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

/// How a communicator is to be made.
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

/// The version that has these fields and no others: 2.17.
const CONFIG_VERSION: c_uint = 21700;
/// What nobody has said.
const UNDEFINED: c_int = c_int::MIN;

impl Config {
    /// One whose calls wait, inside the library.
    pub(crate) fn blocking() -> Self {
        Self { blocking: 1, ..Self::non_blocking() }
    }

    /// One whose calls don't wait: they say [`IN_PROGRESS`](crate::abi::Code::IN_PROGRESS), and are asked how far they are.
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
    fn fields_are_where_the_library_reads_them() {
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
