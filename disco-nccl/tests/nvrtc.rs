//! NVIDIA's compiler for kernels, as a library: what `cargo xtask test --long` fetches compiles for GPUs on a machine that has none.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::env;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use disco_dl::{Candidate, Library};

disco_dl::functions! {
    /// Of `libnvrtc`.
    struct Table {
        /// `nvrtcVersion(int *major, int *minor)`
        version: c"nvrtcVersion"(*mut c_int, *mut c_int);
        /// `nvrtcCreateProgram(nvrtcProgram *, const char *source, const char *name, int, const char *const *, const char *const *)`
        create: c"nvrtcCreateProgram"(*mut *mut c_void, *const c_char, *const c_char, c_int, *const c_void, *const c_void);
        /// `nvrtcCompileProgram(nvrtcProgram, int, const char *const *options)`
        compile: c"nvrtcCompileProgram"(*mut c_void, c_int, *const *const c_char);
        /// `nvrtcGetCUBINSize(nvrtcProgram, size_t *)`
        cubin_size: c"nvrtcGetCUBINSize"(*mut c_void, *mut usize);
        /// `nvrtcGetCUBIN(nvrtcProgram, char *)`
        cubin: c"nvrtcGetCUBIN"(*mut c_void, *mut c_char);
        /// `nvrtcDestroyProgram(nvrtcProgram *)`
        destroy: c"nvrtcDestroyProgram"(*mut *mut c_void);
    }
}

#[test]
fn it_compiles_for_gpus_that_are_not_there() {
    let folder = env::var_os("DISCO_TEST_CACHE").map(|cache| Path::new(&cache).join("nvidia-cuda-nvrtc-cu12-12.8.93"));
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        eprintln!("skipped: NVRTC is not there; `cargo xtask test --long` fetches it");
        return;
    };
    let open = |file: &str| Library::open(&Candidate::file(folder.join("lib").join(file))).unwrap();
    // Which it looks for by name.
    let _builtins = open("libnvrtc-builtins.so.12.8");
    // SAFETY: these are its functions.
    let table = unsafe { Table::resolve(&open("libnvrtc.so.12")) }.unwrap();
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the places are there.
    assert_eq!(unsafe { (table.version)(&mut major, &mut minor) }, 0);
    assert_eq!((major, minor), (12, 8));

    let source = c"extern \"C\" __global__ void add(float *x) { x[threadIdx.x] += 1.0f; }";
    let mut program = ptr::null_mut();
    // SAFETY: the texts end with zeros, and there are no headers.
    let code =
        unsafe { (table.create)(&mut program, source.as_ptr(), c"add.cu".as_ptr(), 0, ptr::null(), ptr::null()) };
    assert_eq!(code, 0);
    let options = [c"--gpu-architecture=sm_90".as_ptr()];
    // SAFETY: there is one option, and the program is there.
    assert_eq!(unsafe { (table.compile)(program, 1, options.as_ptr()) }, 0);
    let mut size = 0;
    // SAFETY: as above.
    assert_eq!(unsafe { (table.cubin_size)(program, &mut size) }, 0);
    let mut cubin = vec![0u8; size];
    // SAFETY: there is as much room as was asked for.
    assert_eq!(unsafe { (table.cubin)(program, cubin.as_mut_ptr().cast()) }, 0);
    assert!(cubin.starts_with(b"\x7fELF") && size > 1000, "{size} bytes");
    // SAFETY: it was made here.
    assert_eq!(unsafe { (table.destroy)(&mut program) }, 0);
}
