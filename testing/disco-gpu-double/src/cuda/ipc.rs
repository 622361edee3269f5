//! Allocations of other processes, and the handles by which processes find them.

use std::process;
use std::sync::Mutex;

use super::abi::{Code, DevicePointer, IPC_LAZY_ENABLE_PEER_ACCESS, IpcHandle};
use super::arena::{Block, BlockLocator};
use super::device::{self, Device};
use super::memory::{self, Span};
use super::peer;
use crate::sync::lock;

static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

const HANDLE_MAGIC: &[u8; 16] = b"disco gpu double";

/// The content of a handle: the magic and six words.
struct Export {
    process: u32,
    device: u32,
    locator: BlockLocator,
    /// Offset of the pointer in the allocation.
    offset: u64,
}

/// An allocation of another process that a device has opened.
struct Opened {
    stamp: u64,
    opener: usize,
    pointer: DevicePointer,
    times: usize,
}

/// `cuIpcGetMemHandle`: the same handle for all pointers into an allocation, except for the offset, which HIP needs.
pub(crate) fn export(pointer: DevicePointer) -> Result<IpcHandle, Code> {
    let span = Span::of(pointer, 0)?;
    let (locator, offset) = span.locator().ok_or(Code::INVALID_VALUE)?;
    let export =
        Export { process: process::id(), device: span.device().ordinal as u32, locator, offset: offset as u64 };
    Ok(export.into())
}

/// `cuIpcOpenMemHandle_v2`: returns the start of the allocation, and the offset of the exported pointer.
pub(crate) fn open(handle: &IpcHandle, flags: u32, opener: &'static Device) -> Result<(DevicePointer, u64), Code> {
    let export = Export::of(handle).filter(|_| flags == IPC_LAZY_ENABLE_PEER_ACCESS).ok_or(Code::INVALID_VALUE)?;
    if export.process == process::id() {
        return Err(Code::INVALID_CONTEXT);
    }
    let owner = device::find(export.device as i32)?;
    if owner.ordinal != opener.ordinal && !peer::can_access(opener, owner) {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let mut opened = lock(&OPENED);
    let stamp = export.locator.stamp;
    if let Some(found) = opened.iter_mut().find(|opened| (opened.stamp, opened.opener) == (stamp, opener.ordinal)) {
        Span::of(found.pointer, 0)?.check().map_err(|_| Code::INVALID_HANDLE)?;
        found.times += 1;
        return Ok((found.pointer, export.offset));
    }
    let block = Block::open(export.process, &export.locator).ok_or(Code::INVALID_HANDLE)?;
    let pointer = memory::adopt(block, owner, opener);
    opened.push(Opened { stamp, opener: opener.ordinal, pointer, times: 1 });
    Ok((pointer, export.offset))
}

/// `cuIpcCloseMemHandle`, of the start of an allocation. Does not wait.
pub(crate) fn close(pointer: DevicePointer) -> Result<(), Code> {
    let mut opened = lock(&OPENED);
    let at = opened.iter().position(|opened| opened.pointer == pointer).ok_or(Code::INVALID_VALUE)?;
    opened[at].times -= 1;
    if opened[at].times == 0 {
        opened.swap_remove(at);
        drop(memory::remove(pointer));
    }
    Ok(())
}

/// Number of open handles.
pub(crate) fn live() -> usize {
    lock(&OPENED).iter().map(|opened| opened.times).sum()
}

impl Export {
    fn of(handle: &IpcHandle) -> Option<Self> {
        let (mark, words) = handle.reserved.split_first_chunk::<16>()?;
        let word = |i: usize| words.as_chunks().0.get(i).copied().map(u64::from_le_bytes);
        let two = |i: usize| word(i).map(|word| (word as u32, (word >> 32) as u32));
        let ((process, file), (device, _)) = (two(0)?, two(1)?);
        let locator = BlockLocator { file, offset: word(2)?, bytes: word(3)?, stamp: word(4)? };
        (mark == HANDLE_MAGIC).then_some(Self { process, device, locator, offset: word(5)? })
    }
}

impl From<Export> for IpcHandle {
    fn from(export: Export) -> Self {
        let BlockLocator { file, offset, bytes, stamp } = export.locator;
        let first = u64::from(export.process) | u64::from(file) << 32;
        let words = [first, export.device.into(), offset, bytes, stamp, export.offset].map(u64::to_le_bytes);
        let mut handle = Self { reserved: [0; 64] };
        let bytes = HANDLE_MAGIC.iter().chain(words.as_flattened());
        handle.reserved.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        handle
    }
}
