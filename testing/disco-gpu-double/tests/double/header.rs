//! Comparison of the double with the header of its NCCL version.

use std::ffi::c_char;
use std::fs;
use std::mem::offset_of;
use std::path::Path;

use disco_conformance::Fetched;
use disco_gpu_double::nccl::abi::{Code, DataType, RedOp, SCALAR_DEVICE, SCALAR_HOST_IMMEDIATE, SPLIT_NO_COLOR};
use disco_gpu_double::nccl::config::Config;

fn header() -> Option<String> {
    let file = Fetched::new("nvidia-nccl-cu12-2.28.9/include/nccl.h").required_by("nccl").find()?;
    Some(fs::read_to_string(file).unwrap())
}

/// The value of a constant in the header.
fn value(header: &str, name: &str) -> i32 {
    let is_name = |(at, _): &(usize, &str)| !header[..*at].ends_with(|before: char| before.is_alphanumeric());
    let after = header
        .match_indices(name)
        .filter(is_name)
        .find_map(|(at, _)| header[at + name.len()..].trim_start().strip_prefix('='));
    let number = after.unwrap_or_else(|| panic!("{name} is not there")).trim_start();
    number[..number.find(|c: char| !c.is_ascii_digit()).unwrap()].parse().unwrap()
}

#[test]
fn codes_equal_those_of_the_header() {
    let Some(header) = header() else { return };
    let codes = [
        ("ncclSuccess", Code::SUCCESS.0),
        ("ncclUnhandledCudaError", Code::UNHANDLED_CUDA_ERROR.0),
        ("ncclSystemError", Code::SYSTEM_ERROR.0),
        ("ncclInternalError", Code::INTERNAL_ERROR.0),
        ("ncclInvalidArgument", Code::INVALID_ARGUMENT.0),
        ("ncclInvalidUsage", Code::INVALID_USAGE.0),
        ("ncclRemoteError", Code::REMOTE_ERROR.0),
        ("ncclInProgress", Code::IN_PROGRESS.0),
        ("ncclInt8", DataType::I8.0),
        ("ncclUint8", DataType::U8.0),
        ("ncclInt32", DataType::I32.0),
        ("ncclUint32", DataType::U32.0),
        ("ncclInt64", DataType::I64.0),
        ("ncclUint64", DataType::U64.0),
        ("ncclFloat16", DataType::F16.0),
        ("ncclFloat32", DataType::F32.0),
        ("ncclFloat64", DataType::F64.0),
        ("ncclBfloat16", DataType::BF16.0),
        ("ncclFloat8e4m3", DataType::F8E4M3.0),
        ("ncclFloat8e5m2", DataType::F8E5M2.0),
        ("ncclSum", RedOp::SUM.0),
        ("ncclProd", RedOp::PROD.0),
        ("ncclMax", RedOp::MAX.0),
        ("ncclMin", RedOp::MIN.0),
        ("ncclAvg", RedOp::AVG.0),
        ("ncclNumOps", RedOp::FIRST_OWN.0),
        ("ncclScalarDevice", SCALAR_DEVICE),
        ("ncclScalarHostImmediate", SCALAR_HOST_IMMEDIATE),
    ];
    for (name, code) in codes {
        assert_eq!(value(&header, name), code, "{name}");
    }
    assert!(header.contains(&format!("#define NCCL_SPLIT_NOCOLOR {SPLIT_NO_COLOR}\n")));
    assert!(header.contains("#define NCCL_UNIQUE_ID_BYTES 128\n"));
}

/// Functions of RCCL, which NCCL's header does not declare.
const RCCL: [&str; 2] = ["ncclAllToAll", "ncclAllToAllv"];

#[test]
fn every_function_is_declared_in_the_header() {
    let Some(header) = header() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nccl/exports");
    let mut functions = 0;
    for file in fs::read_dir(folder).unwrap() {
        let source = fs::read_to_string(file.unwrap().path()).unwrap();
        let with_parameters = source.match_indices("extern \"C\" fn nccl").map(|(at, start)| (at + start.len() - 4, 0));
        // A row of `collectives!` has six more parameters.
        let rows = source.match_indices("\n    nccl").map(|(at, start)| (at + start.len() - 4, 6));
        for (at, more) in with_parameters.chain(rows) {
            let (name, rest) = source[at..].split_once('(').unwrap();
            if RCCL.contains(&name) {
                assert!(!header.contains(&format!("{name}(")), "{name} is NCCL's as well");
                continue;
            }
            let parameters = rest.split_once(')').unwrap().0;
            let parameters = parameters.matches(':').count() - 2 * parameters.matches("::").count() + more;
            let (_, declared) =
                header.split_once(&format!("  {name}(")).or_else(|| header.split_once(&format!(" {name}("))).unwrap();
            let declared = declared.split_once(')').unwrap().0;
            let count = if declared.is_empty() { 0 } else { declared.split(',').count() };
            assert_eq!(parameters, count, "parameters of {name}");
            functions += 1;
        }
    }
    assert_eq!(functions, 31);
}

/// The fields of a C struct, and their offsets.
fn layout(fields: &str) -> Vec<(String, usize)> {
    let mut end = 0_usize;
    let mut field = |line: &str| {
        let (kind, name) = line.trim().strip_suffix(';')?.rsplit_once(' ')?;
        let is_pointer = name.starts_with('*');
        let size = if is_pointer { size_of::<*const c_char>() } else { size_of_c(kind.trim()) };
        let start = end.next_multiple_of(size);
        end = start + size;
        Some((name.trim_start_matches('*').to_owned(), start))
    };
    fields.lines().filter_map(&mut field).collect()
}

fn size_of_c(kind: &str) -> usize {
    match kind {
        "size_t" => size_of::<usize>(),
        "int" | "unsigned int" => 4,
        other => panic!("{other}"),
    }
}

#[test]
fn the_configuration_is_laid_out_as_in_the_header() {
    let Some(header) = header() else { return };
    let (_, fields) = header.split_once("typedef struct ncclConfig_v22800 {").unwrap();
    let (fields, _) = fields.split_once('}').unwrap();
    let ours = [
        ("size", offset_of!(Config, size)),
        ("magic", offset_of!(Config, magic)),
        ("version", offset_of!(Config, version)),
        ("blocking", offset_of!(Config, blocking)),
        ("cgaClusterSize", offset_of!(Config, cga_cluster_size)),
        ("minCTAs", offset_of!(Config, min_ctas)),
        ("maxCTAs", offset_of!(Config, max_ctas)),
        ("netName", offset_of!(Config, net_name)),
        ("splitShare", offset_of!(Config, split_share)),
        ("trafficClass", offset_of!(Config, traffic_class)),
        ("commName", offset_of!(Config, comm_name)),
        ("collnetEnable", offset_of!(Config, collnet_enable)),
        ("CTAPolicy", offset_of!(Config, cta_policy)),
        ("shrinkShare", offset_of!(Config, shrink_share)),
        ("nvlsCTAs", offset_of!(Config, nvls_ctas)),
        ("nChannelsPerNetPeer", offset_of!(Config, n_channels_per_net_peer)),
        ("nvlinkCentricSched", offset_of!(Config, nvlink_centric_sched)),
    ];
    assert_eq!(layout(fields), ours.map(|(name, offset)| (name.to_owned(), offset)));
}
