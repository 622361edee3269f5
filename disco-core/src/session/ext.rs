//! Typed calls, based on the methods of a session.

use std::future::Future;

use super::{Arguments, DRef, IntoArg, IntoArgs, Session};
use crate::error::{Error, Result};
use crate::function::{Arg, FromArg};
use crate::id::WorkerId;
use crate::value::Value;

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

    /// [`SessionExt::call`] of the worker function of this name. The session looks the function up once, as
    /// [`Session::function`] does.
    ///
    /// ```
    /// # use disco_core::{Result, Session, SessionExt};
    /// # async fn example(session: &impl Session) -> Result<()> {
    /// let sums = session.call_named("example.add", (1, 2)).await?;
    /// assert_eq!(session.get_all_as::<i64>(&sums).await?, [3, 3, 3, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SessionExt::call`], and [`Error::UnknownFunction`].
    fn call_named(&self, function: &str, args: impl IntoArgs) -> impl Future<Output = Result<DRef>> + Send {
        let args = args.into_args();
        async move {
            let function = self.function(function).await?;
            self.call(&function, args).await
        }
    }

    /// [`Session::sync_worker`] of worker 0.
    fn sync_worker_0(&self) -> impl Future<Output = Result<()>> + Send {
        self.sync_worker(WorkerId::new(0))
    }

    /// [`Session::get`], converted to a Rust type.
    ///
    /// # Errors
    /// As [`Session::get`]; or the value does not convert to `T`.
    fn get_as<T: FromArg>(&self, handle: &DRef, worker: WorkerId) -> impl Future<Output = Result<T>> + Send {
        async move {
            let value = self.get(handle, worker).await?;
            convert("get", worker, &value)
        }
    }

    /// [`Session::get_all`], converted to a Rust type.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session, SessionExt};
    /// # async fn losses(session: &impl Session, losses: &DRef) -> Result<f64> {
    /// let losses: Vec<f64> = session.get_all_as(losses).await?;
    /// Ok(losses.iter().sum::<f64>() / losses.len() as f64)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::get_all`]; or a value does not convert to `T`. The error names the first such worker.
    fn get_all_as<T: FromArg + Send>(&self, handle: &DRef) -> impl Future<Output = Result<Vec<T>>> + Send {
        async move {
            let values = self.get_all(handle).await?;
            // A resize may have changed the world meanwhile.
            let workers = (0..).map(WorkerId::new);
            workers.zip(&values).map(|(worker, value)| convert("get_all", worker, value)).collect()
        }
    }

    /// [`Session::set`] on one worker after the other, to the value that `make` returns for the worker: anything that
    /// can be an argument, except a handle. `make` is called after the previous worker has replied, so the controller
    /// holds one value at a time.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session, SessionExt};
    /// # async fn number(session: &impl Session, seeds: &DRef) -> Result<()> {
    /// session.set_each(seeds, |worker| 1000 + worker.wire()).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error of [`Session::set`]; later workers keep their values.
    ///
    /// # Cancel safety
    /// If the future is dropped, workers that were not set yet keep their values.
    fn set_each<V: IntoArg>(
        &self,
        handle: &DRef,
        mut make: impl FnMut(WorkerId) -> V + Send,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            for worker in self.world().workers() {
                let mut args = Arguments::default();
                args.push(make(worker));
                self.set(handle, worker, args.into_value()?).await?;
            }
            Ok(())
        }
    }
}

impl<S: Session + ?Sized> SessionExt for S {}

/// Converts a worker's value to a Rust type; `operation` is the session's method.
fn convert<T: FromArg>(operation: &str, worker: WorkerId, value: &Value) -> Result<T> {
    let arg = Arg::Value(value);
    T::from_arg(arg).ok_or_else(|| {
        let (expected, found) = (T::expected(), T::found(arg));
        Error::invalid(format!("{operation}: expected {expected}, {worker} has {found}"))
    })
}
