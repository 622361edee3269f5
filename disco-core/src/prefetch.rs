//! Memory that another core has read, asked for before it is written again.
//!
//! The controller writes frames that workers have just read: each line has to come from the other core's cache, and a write
//! followed by an atomic operation waits for it. Asked for some calls ahead, the lines are there. On two cores a call to
//! one worker takes 0.35 µs with it and 0.57 µs without (`disco ping --workers 1`, 4 arguments).
#![allow(unsafe_code)]

use std::sync::Arc;

const LINE: usize = 64;
/// Before the content of an [`Arc`]: its two counts.
const COUNTS: usize = 2 * size_of::<usize>();

/// Asks for the lines of `value`, to write. Waits for nothing.
pub(crate) fn for_write<T: ?Sized>(value: &T) {
    lines(std::ptr::from_ref(value).cast(), size_of_val(value));
}

/// [`for_write`], for what an [`Arc`] points to and its counts.
pub(crate) fn shared_for_write<T: ?Sized>(value: &Arc<T>) {
    let content = Arc::as_ptr(value).cast::<u8>();
    lines(content.wrapping_sub(COUNTS), COUNTS + size_of_val(&**value));
}

fn lines(first: *const u8, len: usize) {
    let before = first.addr() % LINE;
    let first = first.wrapping_sub(before);
    (0..(before + len).div_ceil(LINE)).for_each(|line| prefetch(first.wrapping_add(line * LINE)));
}

/// `PREFETCHW`, which the compiler's own prefetch becomes only for processors known to have it; others ignore it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn prefetch(line: *const u8) {
    // SAFETY: a hint to the cache: reads and writes nothing, and never faults, whatever the address.
    unsafe { std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags)) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn prefetch(_: *const u8) {}
