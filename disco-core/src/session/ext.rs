//! Typed calls, based on the methods of a session.

use std::future::Future;

use super::{Arguments, DRef, IntoArg, IntoArgs, Session};
use crate::error::{Error, Result};
use crate::function::{Arg, FromArg};
use crate::id::WorkerId;
use crate::stream::Selected;
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

    /// [`SessionExt::call`] of some workers, given as numbers or as [`WorkerId`]s. The others leave the call out, and go on
    /// with the next command: the handle stands for [`Value::None`] there. A function that uses a communicator is to be
    /// called on all its ranks.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session, SessionExt, WorkerId};
    /// # async fn example(session: &impl Session, evaluate: &DRef, weights: &DRef) -> Result<f64> {
    /// // The last worker evaluates while the others train.
    /// let last = WorkerId::new(session.world().size() as u32 - 1);
    /// let score = session.call_on([last], evaluate, (weights,)).await?;
    /// session.get_as(&score, last).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SessionExt::call`]; [`Error::NoSuchWorker`]; a worker is named twice. A resize between this call and its
    /// execution makes it fail on all workers.
    fn call_on<'a>(
        &'a self,
        workers: impl IntoIterator<Item: Into<WorkerId>>,
        function: &'a DRef,
        args: impl IntoArgs,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let world = self.world();
        let mut selected = Selected::none(world);
        let workers: Vec<_> = workers.into_iter().map(Into::into).collect();
        let added = selected.add_all(&workers, world, args.into_args());
        let args = added.map(|()| selected.into_args());
        async move { self.call(function, args?).await }
    }

    /// [`SessionExt::call`] with the arguments that `make` returns for each worker. All arguments go to all workers in one
    /// command, and each takes its own: give large tensors with [`SessionExt::set_each`], which sends each worker only its
    /// own, and pass the handle.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session, SessionExt};
    /// # async fn example(session: &impl Session, load: &DRef) -> Result<DRef> {
    /// session.call_each(load, |worker| (format!("part-{:03}", worker.index()), 64)).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SessionExt::call_on`].
    fn call_each<'a, A: IntoArgs>(
        &'a self,
        function: &'a DRef,
        mut make: impl FnMut(WorkerId) -> A,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let mut selected = Selected::none(self.world());
        self.world().workers().for_each(|worker| selected.add(worker, make(worker).into_args()));
        self.call(function, selected.into_args())
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
