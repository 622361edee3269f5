//! Memory that a graph allocates and frees.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::abi::{Code, DevicePointer};
use super::device::Device;
use super::graph::{self, Node};
use super::memory::{self, FRESH_FILL_BYTE, Span};
use super::pool;

/// The memory of an allocation node. It has one address for all launches, each of which finds it with unspecified
/// elements.
pub(crate) struct GraphMemory {
    pointer: DevicePointer,
    /// Whether the graph has freed it. The driver refuses a second launch of a graph that keeps memory.
    pub(crate) is_freed: AtomicBool,
}

impl GraphMemory {
    /// Allocates from the pool of a device.
    pub(crate) fn new(device: &'static Device, bytes: usize) -> Result<Arc<Self>, Code> {
        let pointer = memory::allocate_from(device, bytes, pool::of_device(device))?;
        Ok(Arc::new(Self { pointer, is_freed: AtomicBool::new(false) }))
    }

    pub(crate) fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// A node at the allocation or at the free: the elements become unspecified.
    pub(crate) fn node(&self) -> Option<Node> {
        let span = Span::find(self.pointer as usize, 1)?.whole();
        Some(graph::node(Box::new(move || {
            span.fill(FRESH_FILL_BYTE);
            Ok(())
        })))
    }

    /// Marks the memory as freed. Returns false if it was already freed.
    pub(crate) fn free(&self) -> bool {
        !self.is_freed.swap(true, SeqCst)
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        memory::discard(self.pointer);
    }
}
