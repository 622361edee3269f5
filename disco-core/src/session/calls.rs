//! Calls of worker functions.

use std::future::Future;
use std::sync::Arc;

use super::submission::Submission;
use super::{DRef, IntoArgs, Session};
use crate::error::Result;
use crate::id::WorkerId;
use crate::stream::Selected;

/// A worker function that is to be called: a handle from [`Session::function`], or a name, which the session looks up
/// once.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Callee<'f> {
    /// A handle.
    Handle(&'f DRef),
    /// A name.
    Name(&'f str),
}

impl<'f> From<&'f DRef> for Callee<'f> {
    fn from(handle: &'f DRef) -> Self {
        Self::Handle(handle)
    }
}

impl<'f> From<&'f str> for Callee<'f> {
    fn from(name: &'f str) -> Self {
        Self::Name(name)
    }
}

impl<'f> From<&'f Arc<str>> for Callee<'f> {
    fn from(name: &'f Arc<str>) -> Self {
        Self::Name(name)
    }
}

impl<'f> From<&&'f str> for Callee<'f> {
    fn from(name: &&'f str) -> Self {
        Self::Name(name)
    }
}

impl<'f> From<&'f String> for Callee<'f> {
    fn from(name: &'f String) -> Self {
        Self::Name(name)
    }
}

/// Calls. Errors and cancel safety are those of [`Session::function`] and [`Session::submit`].
impl dyn Session + '_ {
    /// Calls a worker function with a tuple of arguments, on all workers.
    ///
    /// ```
    /// # use disco_core::{Result, Session};
    /// # async fn example(session: &dyn Session) -> Result<()> {
    /// let sums = session.call("example.add", (1, 2)).await?;
    /// assert_eq!(session.get_all::<i64>(&sums).await?, [3, 3, 3, 3]);
    /// // A handle saves the lookup of the name.
    /// let add = session.function("example.add").await?;
    /// session.call(&add, (&sums, 4)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn call<'f>(
        &self,
        function: impl Into<Callee<'f>>,
        args: impl IntoArgs,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let (function, args) = (function.into(), args.into_args());
        async move {
            let named;
            let function = match function {
                Callee::Handle(function) => function,
                Callee::Name(name) => {
                    named = self.function(name).await?;
                    &named
                }
            };
            // An `await` of the submission would move it once more.
            match self.submit(function, args) {
                Submission::Now(submitted) => submitted,
                Submission::Later(call) => call.await,
            }
        }
    }

    /// [`call`](Session#method.call) of some workers, given as numbers or as [`WorkerId`]s. The others leave the call out,
    /// and go on with the next command: the handle stands for [`Value::None`](crate::Value::None) there. A function that
    /// uses a communicator is to be called on all its ranks.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session, WorkerId};
    /// # async fn example(session: &dyn Session, evaluate: &DRef, weights: &DRef) -> Result<f64> {
    /// // The last worker evaluates while the others train.
    /// let last = WorkerId::new(session.world().size() as u32 - 1);
    /// let score = session.call_on([last], evaluate, (weights,)).await?;
    /// session.get(&score, last).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`call`](Session#method.call); [`Error::NoSuchWorker`](crate::Error::NoSuchWorker); a worker is named twice. A
    /// resize between this call and its execution makes it fail on all workers.
    pub fn call_on<'f>(
        &self,
        workers: impl IntoIterator<Item: Into<WorkerId>>,
        function: impl Into<Callee<'f>>,
        args: impl IntoArgs,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let world = self.world();
        let mut selected = Selected::none(world);
        let workers: Vec<_> = workers.into_iter().map(Into::into).collect();
        let added = selected.add_all(&workers, world, args.into_args());
        let args = added.map(|()| selected.into_args());
        let function = function.into();
        async move { self.call(function, args?).await }
    }

    /// [`call`](Session#method.call) with the arguments that `make` returns for each worker. All arguments go to all
    /// workers in one command, and each takes its own: give large tensors with [`set_each`](Session#method.set_each), which
    /// sends each worker only its own, and pass the handle.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session};
    /// # async fn example(session: &dyn Session) -> Result<DRef> {
    /// session.call_each("example.load", |worker| (format!("part-{:03}", worker.index()), 64)).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`call_on`](Session#method.call_on).
    pub fn call_each<'f, A: IntoArgs>(
        &self,
        function: impl Into<Callee<'f>>,
        mut make: impl FnMut(WorkerId) -> A,
    ) -> impl Future<Output = Result<DRef>> + Send {
        let mut selected = Selected::none(self.world());
        self.world().workers().for_each(|worker| selected.add(worker, make(worker).into_args()));
        self.call(function, selected.into_args())
    }
}
