//! Values that must be the same on all ranks.

use candle_core::{Device, Tensor};
use disco_core::{Error, Result};

use crate::comm::Comm;
use crate::error::{find_disco_error, to_candle};

impl Comm {
    /// Compares `value` with the values of all ranks, which call this method, too. `what` names it in the error. The
    /// collective runs on `device`.
    ///
    /// ```
    /// use candle_core::Device;
    /// use disco_candle::Comm;
    /// use disco_candle::weights::Shards;
    ///
    /// /// Ranks that opened different files get an error instead of a wrong result.
    /// fn check(comm: &Comm, shards: &Shards) -> disco_core::Result<()> {
    ///     comm.require_same("the files of the model", shards.fingerprint(), &Device::Cpu)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`]: a rank has another value; errors of the collective.
    pub fn require_same(&self, what: &str, value: u64, device: &Device) -> Result<()> {
        let values = self.values_of_ranks(value, device).map_err(|error| match find_disco_error(&error) {
            Some(error) => error.clone(),
            None => Error::invalid(format!("{what} can't be compared between the ranks: {error}")),
        })?;
        let Some(other) = values.iter().position(|other| *other != values[0]) else { return Ok(()) };
        let (first, other_value) = (values[0], values[other]);
        Err(Error::invalid(format!(
            "{what} differ between the ranks: rank 0 has {first:016x}, rank {other} has {other_value:016x}"
        )))
    }

    #[expect(clippy::disallowed_methods, reason = "the values of ranks are compared once, when a model is loaded")]
    fn values_of_ranks(&self, value: u64, device: &Device) -> candle_core::Result<Vec<u64>> {
        let own = Tensor::new(&[value.cast_signed()], device)?;
        let all = self.all_gather(&own, 0)?;
        self.synchronize().map_err(to_candle)?;
        let all = all.to_vec1::<i64>()?;
        Ok(all.into_iter().map(i64::cast_unsigned).collect())
    }
}
