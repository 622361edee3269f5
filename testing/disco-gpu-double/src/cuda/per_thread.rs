//! The per-thread default streams: one for each thread and device, all with the handle `CU_STREAM_PER_THREAD`.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::Arc;

use super::device::Device;
use super::stream::Stream;
use crate::handles::Handles;

/// The streams of all threads.
static STREAMS: Handles<Stream> = Handles::new(0xd_0000_0000);

thread_local! {
    static OWN: RefCell<Vec<Own>> = const { RefCell::new(Vec::new()) };
}

/// A stream of this thread. Drop, at the end of the thread, closes the stream, whose submitted work still runs.
struct Own(Arc<Stream>, *mut c_void);

/// The default stream of this thread on a device. The first call makes it. Like the legacy default stream, it has a
/// hardware queue of its own; the two wait for each other.
pub(super) fn stream(device: &'static Device) -> Arc<Stream> {
    OWN.with_borrow_mut(|own| {
        if let Some(Own(stream, _)) = own.iter().find(|own| own.0.device().ordinal == device.ordinal) {
            return Arc::clone(stream);
        }
        let stream = Stream::start(device, true, None);
        own.push(Own(Arc::clone(&stream), STREAMS.insert(Arc::clone(&stream))));
        stream
    })
}

/// The streams of all threads that have not ended.
pub(super) fn all() -> Vec<Arc<Stream>> {
    STREAMS.all()
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.close();
        _ = STREAMS.remove(self.1);
    }
}
