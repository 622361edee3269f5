//! What is built on the methods of a session.

use std::future::Future;

use super::{DRef, IntoArgs, Session};
use crate::error::{Error, Result};
use crate::function::{Arg, FromArg};
use crate::id::WorkerId;

/// Typed calls, for every [`Session`]. Errors and cancel safety are those of the session's methods.
pub trait SessionExt: Session {
    /// Calls a worker function with a tuple of arguments: `session.call(&f, (&x, 2.0, "s"))`.
    fn call<'a>(&'a self, function: &'a DRef, args: impl IntoArgs) -> impl Future<Output = Result<DRef>> + Send {
        let mut args = args.into_args();
        async move {
            match self.try_submit(function, &mut args) {
                Some(handle) => handle,
                None => self.submit(function, args).await,
            }
        }
    }

    /// [`Session::sync_worker`] of worker 0.
    fn sync_worker_0(&self) -> impl Future<Output = Result<()>> + Send {
        self.sync_worker(WorkerId::new(0))
    }

    /// [`Session::get`], as a Rust type.
    ///
    /// # Errors
    /// Also if the value is something else.
    fn get_as<T: FromArg>(&self, handle: &DRef, worker: WorkerId) -> impl Future<Output = Result<T>> + Send {
        async move {
            let value = self.get(handle, worker).await?;
            let wrong = || {
                Error::invalid(format!(
                    "get: expected {}, {worker} has {}",
                    T::expected(),
                    T::found(Arg::Value(&value))
                ))
            };
            T::from_arg(Arg::Value(&value)).ok_or_else(wrong)
        }
    }
}

impl<S: Session + ?Sized> SessionExt for S {}
