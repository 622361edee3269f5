//! Memory of other processes. Each test has a child that exports memory.

use crate::common::child::{self, Child, alone, to_bytes, to_text};
use crate::common::member::read;
use crate::common::{OK, allocate, enter, free, set, use_device};
use disco_gpu_double::controls::{Counts, gpu_double_counts};
use disco_gpu_double::cuda::abi::{Code, IpcHandle, Stream};
use disco_gpu_double::cuda::exports::context::cuDevicePrimaryCtxRelease_v2;
use disco_gpu_double::cuda::exports::ipc::{cuIpcCloseMemHandle, cuIpcGetMemHandle, cuIpcOpenMemHandle_v2};
use disco_gpu_double::cuda::exports::memory::cuMemsetD8Async;
use disco_gpu_double::cuda::exports::stream::cuStreamSynchronize;

const CHILD: &str = "ipc::child_that_has_memory";
/// Size of the child's memory: not a multiple of the page size, and the memory does not start at a page.
const BYTES: usize = 70_000;

/// A child with memory of device 1 that serves requests.
#[test]
fn child_that_has_memory() {
    if !child::is(CHILD) {
        return;
    }
    enter(1);
    let (_before, pointer) = (allocate(100), allocate(BYTES));
    child::reply(&to_text(&export(pointer + 10).reserved));
    for request in child::requests() {
        match request.as_str() {
            "read" => child::reply(&to_text(&read(pointer, 8))),
            "free" => free(pointer),
            other => panic!("{other}"),
        }
        child::reply("done");
    }
}

/// A child, its exported handle, and a stream of device 0.
fn with_child() -> (Child, IpcHandle, Stream) {
    let mut child = Child::start(CHILD);
    let reserved = to_bytes(&child.reply()).try_into().unwrap();
    (child, IpcHandle { reserved }, use_device(0))
}

fn export(pointer: u64) -> IpcHandle {
    let mut handle = IpcHandle { reserved: [0; 64] };
    assert_eq!(cuIpcGetMemHandle(Some(&mut handle), pointer), OK);
    handle
}

fn open(handle: IpcHandle) -> Result<u64, Code> {
    let mut pointer = 0;
    match cuIpcOpenMemHandle_v2(Some(&mut pointer), handle, 1) {
        OK => Ok(pointer),
        code => Err(code),
    }
}

fn opened() -> u64 {
    let mut counts = Counts::default();
    gpu_double_counts(Some(&mut counts));
    counts.opened
}

#[test]
fn each_open_needs_its_own_close() {
    alone(|| {
        let (_child, handle, _stream) = with_child();
        assert_eq!(opened(), 0);
        let pointer = open(handle).unwrap();
        assert_eq!((open(handle), opened()), (Ok(pointer), 2));
        let other = use_device(2);
        let elsewhere = open(handle).unwrap();
        assert_ne!(elsewhere, pointer, "each context has its own address of it");
        assert_eq!((cuIpcCloseMemHandle(elsewhere), cuIpcCloseMemHandle(pointer), opened()), (OK, OK, 1));
        assert_eq!(read(pointer, 1), [0xa5]);
        assert_eq!((cuIpcCloseMemHandle(pointer), opened()), (OK, 0));
        assert_eq!(cuIpcCloseMemHandle(pointer), Code::INVALID_VALUE);
        assert_eq!(cuMemsetD8Async(pointer, 0, 1, other), Code::INVALID_VALUE);
    });
}

#[test]
fn work_on_memory_that_its_process_has_freed_fails() {
    alone(|| {
        let (mut child, handle, _stream) = with_child();
        let broken = use_device(3);
        let pointer = open(handle).unwrap();
        assert_eq!(child.ask("free"), "done");
        assert_eq!(open(handle), Err(Code::INVALID_HANDLE), "although it is open");
        assert_eq!(cuMemsetD8Async(pointer, 0, 1, broken), OK);
        assert_eq!(cuStreamSynchronize(broken), Code::ILLEGAL_ADDRESS);
        assert_eq!(cuIpcCloseMemHandle(pointer), Code::ILLEGAL_ADDRESS);
        assert_eq!((opened(), cuDevicePrimaryCtxRelease_v2(3)), (0, OK), "it is closed all the same");
        enter(3);
        assert_eq!(open(handle), Err(Code::INVALID_HANDLE));
    });
}

#[test]
fn work_on_closed_memory_fails() {
    alone(|| {
        let (mut child, handle, _stream) = with_child();
        let broken = use_device(3);
        let pointer = open(handle).unwrap();
        set(c"GPU_DOUBLE_DELAY_US", c"50000");
        assert_eq!(cuMemsetD8Async(pointer, 0, 1, broken), OK);
        assert_eq!(cuIpcCloseMemHandle(pointer), OK);
        assert_eq!(cuStreamSynchronize(broken), Code::ILLEGAL_ADDRESS);
        set(c"GPU_DOUBLE_DELAY_US", c"0");
        assert_eq!(child.ask("read"), "a5a5a5a5a5a5a5a5");
        assert_eq!(cuDevicePrimaryCtxRelease_v2(3), OK);
        enter(0);
    });
}
