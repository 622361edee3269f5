//! A call that was submitted, or waits for room.

use std::fmt;
use std::future::{self, Future};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::DRef;
use crate::error::Result;

/// The result of [`Session::submit`](super::Session::submit), and a future of the handle.
#[expect(clippy::exhaustive_enums, reason = "a call waits or does not")]
#[must_use = "a call that waits for room is submitted when it is awaited"]
pub enum Submission<'s> {
    /// The call was submitted or refused, without a wait.
    Now(Result<DRef>),
    /// The call waits: the lanes are full, a worker is replaced, or the arguments are large. Dropping the future before it
    /// has ended withdraws the call, unless it was submitted already.
    Later(Pin<Box<dyn Future<Output = Result<DRef>> + Send + 's>>),
}

impl Future for Submission<'_> {
    type Output = Result<DRef>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        match this {
            Self::Later(call) => call.as_mut().poll(context),
            // Boxing a value without a size allocates nothing.
            Self::Now(_) => match mem::replace(this, Self::Later(Box::pin(future::pending()))) {
                Self::Now(submitted) => Poll::Ready(submitted),
                Self::Later(_) => Poll::Pending,
            },
        }
    }
}

impl fmt::Debug for Submission<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(submitted) => f.debug_tuple("Now").field(submitted).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
