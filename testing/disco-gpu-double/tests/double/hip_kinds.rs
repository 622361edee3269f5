//! HIP's kinds of memory: where streams of other devices may write words, and where streams may wait for words.

use crate::common::child::alone;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::common::member::read;
use crate::common::{set, wait_until};
use disco_gpu_double::hip::abi::{Code, IpcHandle, STREAM_NON_BLOCKING, Stream};
use disco_gpu_double::hip::exports::device::hipSetDevice;
use disco_gpu_double::hip::exports::ipc::hipIpcGetMemHandle;
use disco_gpu_double::hip::exports::memory::{hipExtMallocWithFlags, hipFree, hipMalloc};
use disco_gpu_double::hip::exports::peer::hipDeviceEnablePeerAccess;
use disco_gpu_double::hip::exports::stream::{hipStreamCreateWithFlags, hipStreamQuery, hipStreamSynchronize};
use disco_gpu_double::hip::exports::word::{hipStreamWaitValue32, hipStreamWriteValue32};

const OK: Code = Code::SUCCESS;
const REFUSED: Code = Code::INVALID_VALUE;
const FINE: c_uint = 1;
const SIGNAL: c_uint = 2;
const UNCACHED: c_uint = 3;

fn use_device(device: c_int) -> Stream {
    let mut stream = ptr::null_mut();
    assert_eq!([hipSetDevice(device), hipStreamCreateWithFlags(Some(&mut stream), STREAM_NON_BLOCKING)], [OK; 2]);
    stream
}

fn allocate(bytes: usize, flags: c_uint) -> Result<*mut c_void, Code> {
    let mut pointer = ptr::null_mut();
    match hipExtMallocWithFlags(Some(&mut pointer), bytes, flags) {
        OK => Ok(pointer),
        code => Err(code),
    }
}

#[test]
fn words_in_coarse_grained_memory_are_written_by_their_own_device_only() {
    alone(|| {
        let own = use_device(0);
        let words = [0, FINE, UNCACHED].map(|flags| allocate(4, flags).unwrap());
        let mut ordinary = ptr::null_mut();
        assert_eq!(hipMalloc(Some(&mut ordinary), 4), OK);
        let [default, fine, uncached] = words;
        for word in [ordinary, default, fine, uncached] {
            assert_eq!([hipStreamWriteValue32(own, word, 1, 0), hipStreamSynchronize(own)], [OK; 2]);
        }
        let other = use_device(1);
        assert_eq!(hipDeviceEnablePeerAccess(0, 0), OK);
        for (word, code) in [(ordinary, REFUSED), (default, REFUSED), (fine, OK), (uncached, OK)] {
            assert_eq!(hipStreamWriteValue32(other, word, 2, 0), code);
        }
        assert_eq!(hipStreamSynchronize(other), OK);
        [ordinary, default, fine, uncached].into_iter().for_each(|word| assert_eq!(hipFree(word), OK));
    });
}

#[test]
fn signal_memory_is_one_word_that_all_devices_can_access() {
    alone(|| {
        let waiting = use_device(2);
        for bytes in [4, 16] {
            assert_eq!(allocate(bytes, SIGNAL), Err(REFUSED), "{bytes} bytes");
        }
        assert_eq!(allocate(8, 4), Err(REFUSED));
        let (word, fine) = (allocate(8, SIGNAL).unwrap(), allocate(8, FINE).unwrap());
        assert_eq!(read(word.addr() as u64, 8), 1_u64.to_le_bytes());
        let mut handle = IpcHandle { reserved: [0; 64] };
        assert_ne!(hipIpcGetMemHandle(Some(&mut handle), word), OK);
        assert_eq!(hipIpcGetMemHandle(Some(&mut handle), fine), OK);
        set(c"GPU_STREAMOPS_CP_WAIT", c"1");
        assert_eq!(hipStreamWaitValue32(waiting, fine, 0, 0, u32::MAX), REFUSED);
        assert_eq!(hipStreamWaitValue32(waiting, word, 2, 0, u32::MAX), OK);
        set(c"GPU_STREAMOPS_CP_WAIT", c"0");
        assert_eq!(hipStreamWaitValue32(waiting, fine, 0, 0, u32::MAX), OK);
        assert_eq!(hipStreamQuery(waiting), Code::NOT_READY);
        let writing = use_device(3);
        assert_eq!(hipStreamWriteValue32(writing, word, 2, 0), OK);
        wait_until(|| (hipStreamQuery(waiting) == OK).then_some(()));
        [word, fine].into_iter().for_each(|word| assert_eq!(hipFree(word), OK));
    });
}
