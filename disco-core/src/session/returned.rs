//! The result of a call that one worker returns, on the controller.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::lane_session::LaneSession;
use super::{Callee, IntoArgs};
use crate::error::Result;
use crate::id::WorkerId;
use crate::value::Value;

/// A future of the result that a worker returns; [`LaneSession::call_returning`] makes it. Dropping it does not cancel the
/// call.
#[must_use = "the result is discarded otherwise"]
pub struct Returned<'s>(Pin<Box<dyn Future<Output = Result<Value>> + Send + 's>>);

impl LaneSession {
    /// Calls a worker function on all workers; one of them, `worker`, replies with what the function returns. That is one
    /// command and one reply, where [`call`](super::Session#method.call) and [`Session::value`](super::Session::value) are two
    /// commands. The first future ends once the call is submitted, and the second once the reply has come, so calls can be
    /// submitted behind it. Results that a running call sends are those of [`call_streaming`](Self::call_streaming).
    ///
    /// ```
    /// # use disco_core::{Result, Value, session::LaneSession};
    /// # async fn example(session: &LaneSession) -> Result<()> {
    /// let first = session.call_returning(0, "example.step", (1,)).await?;
    /// let second = session.call_returning(0, "example.step", (2,)).await?;
    /// assert_eq!((first.await?, second.await?), (Value::Int(10), Value::Int(20)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`call`](super::Session#method.call) and [`Session::value`](super::Session::value). Workers of TVM's Disco refuse such
    /// calls.
    pub async fn call_returning<'f>(
        &self,
        worker: impl Into<WorkerId> + Send,
        function: impl Into<Callee<'f>> + Send,
        args: impl IntoArgs + Send,
    ) -> Result<Returned<'_>> {
        let (worker, args) = (worker.into(), args.into_args());
        let function = match function.into() {
            Callee::Handle(function) => function.clone(),
            Callee::Name(name) => self.function(name).await?,
        };
        let asked = self.while_running(|| self.stream.call_returning(worker, &function, args)).await?;
        let reply = async { self.stream.returned(asked).await.inspect_err(|error| self.note_told(error)) };
        Ok(Returned(Box::pin(reply)))
    }
}

impl Future for Returned<'_> {
    type Output = Result<Value>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context)
    }
}

crate::format_as!(Debug for Returned<'_>, |_| "Returned");
