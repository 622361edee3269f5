//! The backend `nccl` in the `disco` command, on the test double of NCCL and of the CUDA driver, and on files that are neither.

#![cfg(all(feature = "nccl", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod double;

use disco_gpu_double::folder::{NAMES, hide, with};
use double::{OF_AN_OLD_LIBRARY, absent, conforms, conforms_in, disco, text};

/// As NVIDIA's, which has not RCCL's functions.
#[test]
fn it_conforms() {
    let of_rccl = ["ncclAllToAll", "ncclAllToAllv"];
    let folder = with("gpu-double-nvidia", &NAMES, |object| of_rccl.into_iter().for_each(|name| hide(object, name)));
    conforms("nccl", &folder, &[], &[("2", ""), ("4", "f32"), ("3", "f32"), ("3", "abort::"), ("1", "f32")]);
}

/// Each worker is a process, but for the first, which makes the unique ids.
#[test]
fn it_conforms_among_processes() {
    let parts = [("2", ""), ("3", "abort::"), ("4", "split")];
    conforms_in("processes", "nccl", &disco_gpu_double::folder(), &[], &parts);
}

/// Where the library has no split, any rank may make the unique id of a part.
#[test]
fn an_old_library_conforms_among_processes() {
    let folder = with("gpu-double-2.8-processes", &NAMES, |object| hide_all_since_2_8(object));
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "2804")];
    conforms_in("processes", "nccl", &folder, &variables, &[("3", "f32"), ("4", "split")]);
}

/// With kernels beside NCCL, where they are for the sum.
#[test]
fn sums_by_kernels_conform() {
    let Some(nvrtc) = disco_conformance::nvrtc() else { return };
    let nvrtc = nvrtc.to_str().unwrap();
    let variables = [("DISCO_P2P_TOPOLOGY", "fully_connected"), ("DISCO_NVRTC_LIBRARY", nvrtc)];
    let runs = [("2", "f32"), ("4", "all_reduce"), ("3", "abort::")];
    conforms("cuda_p2p", &disco_gpu_double::folder(), &variables, &runs);
    conforms_in("processes", "cuda_p2p", &disco_gpu_double::folder(), &variables, &[("2", "f32")]);
}

/// Without delays, launches and their ends would seem to be one.
#[test]
fn it_conforms_where_work_takes_its_time() {
    let folder = disco_gpu_double::folder();
    conforms("nccl", &folder, &[("GPU_DOUBLE_DELAY_US", "300")], &[("2", "i32"), ("3", "abort::")]);
}

/// As communicators do that don't block, since 2.22.3.
#[test]
fn it_conforms_where_each_launch_goes_on_by_itself() {
    let variables = [("DISCO_CCL_BLOCKING", "0")];
    conforms("nccl", &disco_gpu_double::folder(), &variables, &[("2", "f32"), ("3", "abort::"), ("2", "split")]);
}

fn hide_all_since_2_8(object: &mut [u8]) {
    let later = [
        "ncclGetLastError",
        "ncclCommInitRankConfig",
        "ncclCommFinalize",
        "ncclCommSplit",
        "ncclAlltoAll",
        "ncclAllToAll",
        "ncclAllToAllv",
        "ncclGather",
        "ncclScatter",
    ];
    later.into_iter().for_each(|function| hide(object, function));
}

/// 2.8 has no non-blocking communicators, no split, and sends and receives for most.
#[test]
fn an_old_library_conforms() {
    let folder = with("gpu-double-2.8", &NAMES, |object| hide_all_since_2_8(object));
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "2804")];
    conforms("nccl", &folder, &variables, &OF_AN_OLD_LIBRARY);
    let checked = disco(&folder, &variables, &["check", "--backend", "nccl", "--workers", "2", "--filter", "avg"]);
    assert!(text(&checked).contains("skipped: nccl does not support all_reduce avg of f32"), "{}", text(&checked));
}

#[test]
fn library_driver_and_devices_are_listed() {
    let folder = disco_gpu_double::folder();
    let variables = [("GPU_DOUBLE_DEVICES", "2"), ("GPU_DOUBLE_DRIVER", "12040")];
    let listed = text(&disco(&folder, &variables, &["backends"]));
    let (_, nccl) = listed.split_once("nccl     available    NCCL 2.28.9 (").unwrap();
    let lines: Vec<&str> = nccl.lines().take(4).collect();
    assert!(lines[0].ends_with("/libnccl.so.2)"), "{listed}");
    assert_eq!(
        lines[1..],
        ["         driver: CUDA 12.4", "         cuda:0: GPU double", "         cuda:1: GPU double"]
    );
}

#[test]
fn what_is_not_there_is_told_with_its_reason() {
    let nothing = with("gpu-double-none", &[], |_| {});
    let why = absent("nccl", &nothing, &[]);
    assert!(why.starts_with("NCCL is not available; tried libnccl.so.2: cannot open shared object file"), "{why}");
    let why = absent("nccl", &nothing, &[("DISCO_NCCL_LIBRARY", "/nowhere/libnccl.so.2")]);
    let expected =
        "NCCL is not available; tried /nowhere/libnccl.so.2: cannot open shared object file: No such file or directory";
    assert_eq!(why, expected);

    let no_driver = with("gpu-double-nccl", &["libnccl.so.2"], |_| {});
    let why = absent("nccl", &no_driver, &[]);
    assert!(why.starts_with("the CUDA driver is not available; tried libcuda.so: cannot open shared"), "{why}");
    assert!(why.contains("tried libcuda.so.1: cannot open shared"), "{why}");
}

#[test]
fn what_will_not_do_is_told_with_its_reason() {
    let folder = disco_gpu_double::folder();
    let why = absent("nccl", &folder, &[("GPU_DOUBLE_NCCL_VERSION", "2604")]);
    assert!(why.contains("tried libnccl.so.2: it is NCCL 2.6.4; 2.7.0 or later is needed"), "{why}");
    let why = absent("nccl", &folder, &[("GPU_DOUBLE_DRIVER", "10020")]);
    assert!(why.contains("tried libcuda.so.1: its CUDA is 10.2; 11.4 or later is needed"), "{why}");
    let why = absent("nccl", &folder, &[("GPU_DOUBLE_INIT", "100")]);
    assert!(why.contains("tried libcuda.so.1: cuInit returned 100: "), "{why}");

    let lacks = |object: &mut Vec<u8>| ["ncclSend", "ncclRecv"].into_iter().for_each(|function| hide(object, function));
    let why = absent("nccl", &with("gpu-double-lacks", &NAMES, lacks), &[]);
    assert!(why.contains("tried libnccl.so.2: it lacks ncclSend, ncclRecv"), "{why}");
    let lacks = |object: &mut Vec<u8>| hide(object, "cuMemcpyDtoDAsync_v2");
    let why = absent("nccl", &with("gpu-double-lacks-copies", &NAMES, lacks), &[]);
    assert!(why.contains("tried libcuda.so.1: it lacks cuMemcpyDtoDAsync_v2"), "{why}");

    // A toolkit's stub, which cudarc would take.
    let stub = with("gpu-double-stub", &["libcuda.so.1", "libnccl.so.2"], |_| {});
    std::fs::copy(stub.join("double.so"), stub.join("libcuda.so")).unwrap();
    let why = absent("nccl", &stub, &[("GPU_DOUBLE_INIT", "34")]);
    assert!(why.contains("tried libcuda.so.1: cudarc would take libcuda.so, which is another"), "{why}");

    // The machine that it is for: 64-bit ARM, or Intel's on other machines.
    let other = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    let foreign = with("gpu-double-foreign", &NAMES, |object| object[18] = other);
    let why = absent("nccl", &foreign, &[]);
    assert!(why.starts_with("NCCL is not available; tried libnccl.so.2: "), "{why}");
    let no_library = with("gpu-double-text", &NAMES, |object| *object = b"not a library".to_vec());
    assert!(absent("nccl", &no_library, &[]).contains("file too short"), "{}", absent("nccl", &no_library, &[]));
}

#[test]
fn workers_take_the_devices_that_are_named() {
    let folder = disco_gpu_double::folder();
    let bench = ["bench", "all_reduce", "--backend", "nccl", "--max-bytes", "4096", "--devices"];
    let run = disco(&folder, &[], &[&bench[..], &["3,1"]].concat());
    assert!(run.status.success() && text(&run).contains("wrong elements: 0"), "{}", text(&run));
    let run = disco(&folder, &[], &[&bench[..], &["1,1"]].concat());
    assert!(!run.status.success() && text(&run).contains("rank 0 and rank 1 are both on device "), "{}", text(&run));
    let run = disco(&folder, &[], &[&bench[..], &["0"]].concat());
    assert!(!run.status.success() && text(&run).contains("1 devices for 2 workers"), "{}", text(&run));
}
