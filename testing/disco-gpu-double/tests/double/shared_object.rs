//! The shared object, under the names that loaders look for.

use std::ffi::{CStr, c_int};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{env, fs, process};

use disco_gpu_double::controls::Counts;
use disco_gpu_double::folder::HIP_NAMES;
use libloading::Library;

/// The path of the shared object, which cargo builds next to the tests.
fn shared_object() -> PathBuf {
    let file = env::current_exe().unwrap().with_file_name("libdisco_gpu_double.so");
    assert!(file.is_file(), "{} is not there", file.display());
    file
}

fn open(file: &PathBuf) -> Library {
    // SAFETY: the library has only the initialisers of Rust's runtime.
    unsafe { Library::new(file) }.unwrap()
}

fn address(library: &Library, function: &CStr) -> usize {
    // SAFETY: the symbol is not called; only its address is used.
    let function = unsafe { library.get::<unsafe extern "C" fn()>(function) };
    *function.unwrap() as usize
}

#[test]
fn two_links_are_one_image() {
    let folder = env::temp_dir().join(format!("disco-gpu-double-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let files = ["libcuda.so.1", "libnccl.so.2"].map(|name| folder.join(name));
    for file in &files {
        symlink(shared_object(), file).unwrap();
    }
    let [cuda, nccl] = files.each_ref().map(open);
    assert_eq!(address(&cuda, c"gpu_double_counts"), address(&nccl, c"gpu_double_counts"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_folder_of_amds_names_has_one_image() {
    let folder = disco_gpu_double::hip_folder();
    let [hip, rccl] = HIP_NAMES.map(|name| open(&folder.join(name)));
    assert_eq!(address(&hip, c"hipGetDeviceCount"), address(&rccl, c"hipGetDeviceCount"));
    let apart = open(&disco_gpu_double::folder().join("libcuda.so.1"));
    assert_ne!(
        address(&apart, c"hipGetDeviceCount"),
        address(&hip, c"hipGetDeviceCount"),
        "each folder has its own image"
    );
    for function in [c"ncclAllToAll", c"ncclAllToAllv", c"ncclAllReduce"] {
        address(&rccl, function);
    }
}

#[test]
fn exported_functions_can_be_called() {
    let library = open(&shared_object());
    // SAFETY: this is the function's signature.
    let version = unsafe { library.get::<extern "C" fn(*mut c_int) -> c_int>(c"ncclGetVersion") }.unwrap();
    let mut number = 0;
    assert_eq!((version(&mut number), number), (0, 22809));
    assert_eq!(version(std::ptr::null_mut()), 4);
    // SAFETY: this is the function's signature.
    let init = unsafe { library.get::<extern "C" fn(u32) -> c_int>(c"cuInit") }.unwrap();
    assert_eq!(init(0), 0);
    // SAFETY: this is the function's signature.
    let count = unsafe { library.get::<extern "C" fn(*mut c_int) -> c_int>(c"cuDeviceGetCount") }.unwrap();
    assert_eq!((count(&mut number), number), (0, 4));
    let mut counts = Counts { units: 9, ..Counts::default() };
    // SAFETY: this is the function's signature.
    let read = unsafe { library.get::<extern "C" fn(*mut Counts)>(c"gpu_double_counts") }.unwrap();
    read(&mut counts);
    assert_eq!(counts, Counts::default());
}
