//! Modules and launches: refused calls, and launches that fail when they run.

#![allow(unsafe_code, reason = "C functions")]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::common::OK;
use crate::common::child::alone;
use crate::common::member::{connect, devices, function, launch, members};
use crate::common::params::{self, FIELDS};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRelease_v2;
use disco_gpu_double::cuda::exports::module::cuLaunchKernel;
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;
use disco_gpu_double::cuda::kernel::params::Params;

const ONE_SHOT: &CStr = c"disco_one_shot_f32";
const BARRIER: &CStr = c"disco_barrier";

#[test]
fn the_parameter_layout_equals_that_of_disco_nccl() {
    let ours = [
        ("data", offset_of!(Params, data)),
        ("state", offset_of!(Params, state)),
        ("input", offset_of!(Params, input)),
        ("output", offset_of!(Params, output)),
        ("abort", offset_of!(Params, abort)),
        ("report", offset_of!(Params, report)),
        ("timeout_ns", offset_of!(Params, timeout_ns)),
        ("count", offset_of!(Params, count)),
        ("rank", offset_of!(Params, rank)),
        ("world", offset_of!(Params, world)),
        ("near", offset_of!(Params, near)),
        ("relay", offset_of!(Params, relay)),
        ("unused", offset_of!(Params, unused)),
    ];
    assert_eq!((ours, size_of::<Params>()), (FIELDS, size_of::<params::Params>()));
}

#[test]
fn launches_with_an_unsupported_grid_are_refused() {
    alone(|| {
        devices();
        let members = members(3, 4);
        let one = &members[0];
        one.enter();
        let kernel = function(one.module, ONE_SHOT).unwrap();
        let params = ptr::from_ref(&one.params).cast::<c_void>();
        // SAFETY: the pointer is that of valid parameters.
        let code = |blocks, threads| unsafe { launch(kernel, blocks, threads, one.stream, &params) };
        for blocks in [[65, 1, 1], [0, 1, 1], [1, 2, 1], [1, 1, 2]] {
            assert_eq!(code(blocks, [32, 1, 1]), Code::INVALID_VALUE, "{blocks:?}");
        }
        for threads in [[513, 1, 1], [0, 1, 1], [2, 1, 1], [32, 2, 1], [32, 1, 2]] {
            assert_eq!(code([1, 1, 1], threads), Code::INVALID_VALUE, "{threads:?}");
        }
        let raw = |kernel, stream, params, extra| {
            // SAFETY: the pointer is null or that of valid parameters.
            unsafe { cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, extra) }
        };
        let (none, some) = (ptr::null::<*const c_void>(), ptr::from_ref(&params));
        assert_eq!(raw(kernel, one.stream, none, none), Code::INVALID_VALUE);
        assert_eq!(raw(kernel, one.stream, &ptr::null(), none), Code::INVALID_VALUE);
        assert_eq!(raw(kernel, one.stream, some, some), Code::INVALID_VALUE);
        assert_eq!(raw(one.module, one.stream, some, none), Code::INVALID_HANDLE);
        assert_eq!(raw(kernel, members[1].stream, some, none), Code::INVALID_HANDLE, "the stream is another device's");
        members[1].enter();
        assert_eq!(
            raw(kernel, members[1].stream, some, none),
            Code::INVALID_HANDLE,
            "the function is another device's"
        );
        one.enter();
        assert_eq!((cuStreamQuery(one.stream), one.report()), (OK, 0));
    });
}

/// Launches on one of two ranks with changed parameters, and returns the code of its device. The other rank launches
/// nothing.
fn outcome(change: impl FnOnce(&mut params::Params)) -> Code {
    let mut members = members(2, 4);
    let one = &mut members[0];
    one.enter();
    one.params.timeout_ns = 0;
    change(&mut one.params);
    assert_eq!(one.launch(ONE_SHOT, 1, 32), OK, "it is found out later");
    let outcome = one.synchronize();
    if outcome != OK {
        // Releases all references to the context: those of the test, of the member, and of the helpers that made the
        // device current.
        while cuDevicePrimaryCtxRelease_v2(0) == OK {}
        connect(0);
    }
    outcome
}

#[test]
fn a_launch_with_inaccessible_memory_fails() {
    alone(|| {
        devices();
        type Change = fn(&mut params::Params);
        let wrong: [(&str, Change); 13] = [
            ("no input", |params| params.input = 0),
            ("input ends too early", |params| params.input += 16),
            ("output ends too early", |params| params.count += 1),
            ("output of a peer", |params| params.output = params.data[1]),
            ("input within a vector", |params| params.input += 8),
            ("no buffer of a peer", |params| params.data[1] = 0),
            ("no buffer of its own", |params| params.data[0] = 0),
            ("a peer's buffer ends too early", |params| params.data[1] += 128),
            ("a state within a line", |params| params.state[1] += 64),
            ("a state ends too early", |params| params.state[0] += 128),
            ("no report", |params| params.report = 0),
            ("an abort word within a word", |params| params.abort += 2),
            ("a rank out of the world", |params| params.rank = 2),
        ];
        for (what, change) in wrong {
            assert_eq!(outcome(change), Code::ILLEGAL_ADDRESS, "{what}");
        }
        assert_eq!(outcome(|_| {}), OK);
        assert_eq!(outcome(|params| params.data[2] = 16), OK, "of no rank");
    });
}

#[test]
fn a_peers_memory_needs_access() {
    alone(|| {
        devices();
        while cuDevicePrimaryCtxRelease_v2(0) == OK {}
        let members = members(2, 4);
        members[0].enter();
        assert_eq!((members[0].launch(BARRIER, 1, 32), members[0].synchronize()), (OK, Code::ILLEGAL_ADDRESS));
    });
}
