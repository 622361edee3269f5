//! Loads Debian's RCCL and HIP, which `cargo xtask test --long` fetches, on a machine without a GPU. They may need a
//! newer C library than the machine has, so the test runs in a child process that is started with the loader of the
//! fetched C library.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::env;
use std::process::Command;

use disco_ccl::abi::Code;
use disco_conformance::Fetched;
use disco_core::{Backend as _, DType, DeviceApi as _, OpKind, Reduction};
use disco_rccl::{BACKEND, Hip};

#[test]
fn the_real_libraries_load_and_report_that_no_gpu_exists() {
    let Some(folder) = Fetched::long("debian-rccl").find() else { return };
    let libraries = folder.join("usr/lib/x86_64-linux-gnu");
    let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
    command.arg("--library-path").arg(&libraries).arg(env::current_exe().unwrap());
    command
        .args(["child_process_with_the_fetched_c_library", "--exact", "--ignored", "--nocapture"])
        .env_remove("DISCO_RCCL_LIBRARY");
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "a child process of the other test"]
fn child_process_with_the_fetched_c_library() {
    let library = BACKEND.library().unwrap();
    assert!(library.version().to_string().starts_with("2.13."), "{}", library.version());
    let table = &library.table;
    assert!(
        table.all_to_all_rccl.is_some()
            && table.all_to_all_v.is_some()
            && table.gather.is_some()
            && table.scatter.is_some()
    );
    assert!(table.all_to_all.is_none() && table.comm_init_rank_config.is_none() && table.comm_split.is_none());
    assert!(table.comm_finalize.is_none() && table.comm_register.is_none() && table.mem_alloc.is_none());
    assert_ne!(library.unique_id().unwrap(), library.unique_id().unwrap());
    let can = library.capabilities(false);
    assert!(can.supports(OpKind::AllReduce, DType::BF16, Some(Reduction::Avg)));
    // SAFETY: `ncclGroupStart` has no preconditions, and a group may be empty.
    assert_eq!(unsafe { (table.group_start)() }, Code::SUCCESS);
    // SAFETY: the group was started above.
    let code = unsafe { (table.group_end)() };
    let error = library.check("ncclGroupEnd", code).unwrap_err().to_string();
    assert!(error.starts_with("rccl: ncclGroupEnd returned 1: unhandled cuda error"), "{error}");

    let why = Hip.count().unwrap_err().to_string();
    assert!(why.contains("hipGetDeviceCount returned 100: no ROCm-capable device is detected"), "{why}");
    assert_eq!(BACKEND.probe().unwrap_err().to_string(), why);
}
