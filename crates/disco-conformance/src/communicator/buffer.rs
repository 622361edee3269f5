//! Tensors with guard elements around them.

use disco_core::{DType, Result, Tensor, WorkerContext};

use super::fixture::{self, Fixture, HostMemory};

/// Guard elements after each window.
const GUARD: usize = 3;
/// The byte of guard elements, and of results before they are written. No input has an element of only these bytes.
pub(crate) const POISON: u8 = 0xa5;

/// A window of a larger tensor of one worker. The other elements are guards, which no operation may write.
#[derive(Debug)]
pub(crate) struct Buffer {
    whole: Tensor,
    window: Tensor,
    content: Vec<u8>,
    memory: HostMemory,
}

impl Buffer {
    /// Makes a window with `content` at element `offset` of its storage. A host tensor is in `memory`, and so are the
    /// host's sides of copies.
    pub(crate) fn new(
        ctx: &mut WorkerContext,
        dtype: DType,
        content: Vec<u8>,
        offset: usize,
        memory: HostMemory,
    ) -> Result<Self> {
        let count = content.len() / dtype.size();
        let shape = [(offset + count + GUARD) as i64];
        let whole = memory.empty(ctx, dtype, shape)?;
        let window = whole.window(offset, [count as i64])?;
        fixture::upload(ctx, &whole, &guarded(&window, &content, whole.byte_len()), memory)?;
        Ok(Self { whole, window, content, memory })
    }

    /// The same tensor with rows of `row` elements.
    pub(crate) fn in_rows(mut self, row: usize) -> Result<Self> {
        self.window = self.window.window(0, [self.window.elements() / row, row])?;
        Ok(self)
    }

    /// The elements.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.window
    }

    /// The initial content.
    pub(crate) fn content(&self) -> &[u8] {
        &self.content
    }

    /// The current bytes of the window, and a text if a guard was written.
    pub(crate) fn read(&self, ctx: &mut WorkerContext) -> Result<(Vec<u8>, Option<String>)> {
        let bytes = fixture::download(ctx, &self.whole, self.memory)?;
        let range = self.window.byte_range();
        let window = bytes[range.clone()].to_vec();
        let touched = (0..range.start).chain(range.end..bytes.len()).find(|at| bytes[*at] != POISON);
        let wrong = touched.map(|at| {
            let size = self.window.dtype().size();
            let elements = at as i64 / size as i64 - (range.start / size) as i64;
            format!("element {elements}, outside of the tensor's {} elements, was written", self.window.elements())
        });
        Ok((window, wrong))
    }
}

impl Fixture<'_> {
    /// A guarded tensor on the worker's device.
    pub(crate) fn buffer(&mut self, dtype: DType, content: Vec<u8>, offset: usize) -> Result<Buffer> {
        Buffer::new(self.ctx, dtype, content, offset, self.memory)
    }
}

fn guarded(window: &Tensor, content: &[u8], bytes: usize) -> Vec<u8> {
    let mut all = vec![POISON; bytes];
    all[window.byte_range()].copy_from_slice(content);
    all
}
