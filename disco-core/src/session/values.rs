//! Values of workers as types of Rust.

use super::{Arguments, DRef, IntoArg, Session};
use crate::error::{Error, Result};
use crate::function::{Arg, FromArg};
use crate::id::WorkerId;
use crate::value::Value;

/// Values. Cancel safety is that of [`Session::value`].
impl dyn Session + '_ {
    /// The value of a register on one worker, converted to a Rust type, after all earlier commands: [`Session::value`].
    ///
    /// # Errors
    /// As [`Session::value`]; or the value does not convert to `T`.
    pub async fn get<T: FromArg>(&self, handle: &DRef, worker: WorkerId) -> Result<T> {
        let value = self.value(handle, worker).await?;
        convert("get", worker, &value)
    }

    /// The values of a register on all workers, in worker order, converted to a Rust type: [`Session::values`].
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session};
    /// # async fn losses(session: &dyn Session, losses: &DRef) -> Result<f64> {
    /// let losses: Vec<f64> = session.get_all(losses).await?;
    /// Ok(losses.iter().sum::<f64>() / losses.len() as f64)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::values`]; or a value does not convert to `T`. The error names the first such worker.
    pub async fn get_all<T: FromArg>(&self, handle: &DRef) -> Result<Vec<T>> {
        let values = self.values(handle).await?;
        // A resize may have changed the world meanwhile.
        let workers = (0..).map(WorkerId::new);
        workers.zip(&values).map(|(worker, value)| convert("get_all", worker, value)).collect()
    }

    /// [`Session::set`] on one worker after the other, to the value that `make` returns for the worker: anything that
    /// can be an argument, except a handle. `make` is called after the previous worker has replied, so the controller
    /// holds one value at a time.
    ///
    /// ```
    /// # use disco_core::{DRef, Result, Session};
    /// # async fn number(session: &dyn Session, seeds: &DRef) -> Result<()> {
    /// session.set_each(seeds, |worker| 1000 + worker.wire()).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first error of [`Session::set`]; later workers keep their values.
    ///
    /// # Cancel safety
    /// If the future is dropped, workers that were not set yet keep their values.
    pub async fn set_each<V: IntoArg>(&self, handle: &DRef, mut make: impl FnMut(WorkerId) -> V + Send) -> Result<()> {
        for worker in self.world().workers() {
            let mut args = Arguments::default();
            args.push(make(worker));
            self.set(handle, worker, args.into_value()?).await?;
        }
        Ok(())
    }
}

/// Converts a worker's value to a Rust type; `operation` is the session's method.
fn convert<T: FromArg>(operation: &str, worker: WorkerId, value: &Value) -> Result<T> {
    let arg = Arg::Value(value);
    T::from_arg(arg).ok_or_else(|| {
        let (expected, found) = (T::expected(), T::found(arg));
        Error::invalid(format!("{operation}: expected {expected}, {worker} has {found}"))
    })
}
