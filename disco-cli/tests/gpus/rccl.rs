//! The `disco` command with backend `rccl`, on the test double of RCCL and HIP. Code shared with backend `nccl` is
//! tested in `nccl.rs`.

use super::double::{conforms, conforms_in, disco, text, unavailable_reason};
use disco_gpu_double::folder::{HIP_NAMES, hide, hip_folder, with};

crate::trials::tests!("gpus::rccl":
    rccl_passes_the_conformance_suite,
    rccl_passes_the_conformance_suite_between_processes,
    an_old_library_passes_its_parts_of_the_conformance_suite,
    backends_lists_the_library_the_hip_version_and_the_devices,
    a_missing_library_or_function_is_the_reason_for_an_unavailable_backend,
    a_failing_call_is_reported_with_its_function_and_code,
);

fn rccl_passes_the_conformance_suite() {
    conforms("rccl", &hip_folder(), &[], &[("2", ""), ("3", "abort::")]);
    conforms("rocm_p2p", &hip_folder(), &[], &[("2", "all_reduce")]);
}

fn rccl_passes_the_conformance_suite_between_processes() {
    conforms_in("processes", "rccl", &hip_folder(), &[], &[("2", "f32")]);
    conforms_in("processes", "rocm_p2p", &hip_folder(), &[], &[("2", "all_reduce")]);
}

/// 2.13 has neither non-blocking communicators nor split.
fn an_old_library_passes_its_parts_of_the_conformance_suite() {
    let later = ["ncclGetLastError", "ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommSplit", "ncclCommRegister"];
    let of_nccl = ["ncclAlltoAll", "ncclMemAlloc"];
    let hide_all = |object: &mut Vec<u8>| later.iter().chain(&of_nccl).for_each(|function| hide(object, function));
    let folder = with("gpu-double-hip-2.13", &HIP_NAMES, hide_all);
    let variables = [("GPU_DOUBLE_NCCL_VERSION", "21304"), ("GPU_DOUBLE_HIP", "50422804")];
    conforms("rccl", &folder, &variables, &[("2", "f32"), ("2", "split"), ("3", "abort::all_reduce")]);
}

fn backends_lists_the_library_the_hip_version_and_the_devices() {
    let listed = text(&disco(&hip_folder(), &[("GPU_DOUBLE_DEVICES", "2")], &["backends"]));
    let (_, rccl) = listed.split_once("rccl     available    RCCL 2.28.9 (").unwrap();
    let lines: Vec<&str> = rccl.lines().collect();
    assert!(lines[0].ends_with("/librccl.so.1)"), "{listed}");
    assert_eq!(lines[1], "         driver: HIP 6.3.42131");
    assert!(lines[2].starts_with("         rocm:0: ") && lines[3].starts_with("         rocm:1: "), "{listed}");
}

fn a_missing_library_or_function_is_the_reason_for_an_unavailable_backend() {
    let nothing = with("gpu-double-none", &[], |_| {});
    let why = unavailable_reason("rccl", &nothing, &[]);
    assert!(why.starts_with("RCCL is not available; tried librccl.so.1, librccl.so, "), "{why}");
    let only_rccl = with("gpu-double-rccl", &["librccl.so.1"], |_| {});
    let why = unavailable_reason("rccl", &only_rccl, &[]);
    assert!(why.starts_with("HIP is not available; tried libamdhip64.so.7, "), "{why}");
    let only_hip = with("gpu-double-amdhip64", &["libamdhip64.so.6"], |_| {});
    assert!(unavailable_reason("rccl", &only_hip, &[]).starts_with("RCCL is not available; "));
    let why = unavailable_reason("rccl", &hip_folder(), &[("GPU_DOUBLE_INIT", "100")]);
    assert!(why.contains("hipGetDeviceCount returned 100: "), "{why}");
    let lacks = with("gpu-double-hip-lacks", &HIP_NAMES, |object| hide(object, "hipStreamQuery"));
    let why = unavailable_reason("rccl", &lacks, &[]);
    assert!(why.contains("tried libamdhip64.so.6: it lacks hipStreamQuery"), "{why}");
}

fn a_failing_call_is_reported_with_its_function_and_code() {
    let bench = ["bench", "all_gather", "--backend", "rccl", "--max-bytes", "64"];
    for (fault, why) in [
        ("ncclAllGather:1:1=1", "rccl: ncclAllGather returned 1: "),
        ("ncclCommInitRankConfig:0:1=2", "rccl: ncclCommInitRankConfig returned 2: "),
        ("hipMallocFromPoolAsync:0:1=2", "no room for "),
        ("hipMemcpyAsync:0:1=700", "hip: hipMemcpyAsync returned 700: "),
    ] {
        let run = disco(&hip_folder(), &[("GPU_DOUBLE_FAULTS", fault)], &bench);
        assert!(!run.status.success() && text(&run).contains(why), "{fault}: {}", text(&run));
    }
    let bench = ["bench", "send_recv", "--backend", "rccl", "--max-bytes", "64"];
    let run = disco(&hip_folder(), &[("GPU_DOUBLE_FAULTS", "ncclGroupEnd:1:1=3")], &bench);
    assert!(text(&run).contains("rccl: ncclGroupEnd returned 3: "), "{}", text(&run));
}
