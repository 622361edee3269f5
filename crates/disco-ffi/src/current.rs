//! The worker of this thread, for functions that a library calls back.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use disco_core::WorkerContext;

thread_local! {
    /// The context that the running call of a library has lent; null if none is running, or if a callback has it.
    static CURRENT: Cell<*mut WorkerContext> = const { Cell::new(ptr::null_mut()) };
}

/// Lends a context to callbacks until it is dropped.
pub(crate) struct Lent<'a> {
    before: *mut WorkerContext,
    _context: PhantomData<&'a mut WorkerContext>,
}

/// Makes `context` the one that [`with`] gives out on this thread. The result borrows it mutably, so that only
/// callbacks use it meanwhile.
pub(crate) fn lend(context: &mut WorkerContext) -> Lent<'_> {
    Lent { before: CURRENT.replace(context), _context: PhantomData }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

/// Calls `work` with the context of the worker whose call of a library is running on this thread. While `work` runs,
/// no other code gets the context, except through calls of libraries that `work` makes with it. None if no such call is
/// running.
pub fn with<T>(work: impl FnOnce(&mut WorkerContext) -> T) -> Option<T> {
    /// Gives the context back, also after a panic.
    struct Taken(*mut WorkerContext);

    impl Drop for Taken {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }

    let taken = Taken(CURRENT.replace(ptr::null_mut()));
    // SAFETY: the pointer is null, or comes from a `Lent` that is alive: it borrows the context mutably and is not
    // using it. The pointer was taken out, so there is no second reference until `taken` is dropped.
    unsafe { taken.0.as_mut() }.map(work)
}
