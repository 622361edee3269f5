//! Environment variables as typed values.
//!
//! A variable with an empty value counts as not set. An error names the variable, its value, and what the variable
//! takes.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};

/// The environment variable with the [spin time](spin_time) in µs.
pub const SPIN_VARIABLE: &str = "DISCO_SPIN_MICROS";
/// The longest spin time: a longer one would starve other threads.
const MAX_SPIN: Duration = Duration::from_secs(1);

/// How long waits of this process poll before they sleep, as `DISCO_SPIN_MICROS` says; zero: never. `None` if the
/// variable is not set: each kind of wait then uses its own default. A longer time lowers the latency and costs
/// processor time. Read once; an invalid value is logged and ignored, and the longest time is 1 s.
pub fn spin_time() -> Option<Duration> {
    static TIME: OnceLock<Option<Duration>> = OnceLock::new();
    *TIME.get_or_init(|| {
        let micros = Variable::read(SPIN_VARIABLE).number();
        let micros = micros.inspect_err(|error| tracing::warn!(%error, "the default spin times apply"));
        micros.ok().flatten().map(|micros| Duration::from_micros(micros).min(MAX_SPIN))
    })
}

/// An environment variable and its value at the time of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable<'a> {
    name: &'a str,
    value: Option<OsString>,
}

impl<'a> Variable<'a> {
    /// Reads the variable from the environment of this process.
    pub fn read(name: &'a str) -> Self {
        Self::new(name, env::var_os(name))
    }

    /// A variable with a value that the caller has read.
    pub fn new(name: &'a str, value: Option<OsString>) -> Self {
        Self { name, value: value.filter(|value| !value.is_empty()) }
    }

    /// The value as text.
    ///
    /// # Errors
    /// The value is not UTF-8.
    pub fn text(&self) -> Result<Option<&str>> {
        let Some(value) = &self.value else { return Ok(None) };
        value.to_str().map(Some).ok_or_else(|| self.invalid("is no UTF-8 text"))
    }

    /// The value as a switch: true for `1`, false for `0`.
    ///
    /// # Errors
    /// The value is neither `1` nor `0`.
    pub fn flag(&self) -> Result<Option<bool>> {
        match self.text()? {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(_) => Err(self.invalid("is neither 0 nor 1")),
        }
    }

    /// The value as a number of type `T`.
    ///
    /// # Errors
    /// The value is not a number of type `T`.
    pub fn number<T: FromStr>(&self) -> Result<Option<T>> {
        self.text()?.map(|text| text.parse().map_err(|_| self.invalid("is no number"))).transpose()
    }

    /// The comma-separated items of the value, without surrounding white space; empty if the variable is not set. An
    /// error quotes `kind`, the name of the items, and `example`.
    ///
    /// # Errors
    /// `parse` returns none for one of the parts.
    ///
    /// ```
    /// use disco_core::env::Variable;
    ///
    /// let cores = |value: &str| {
    ///     Variable::new("MY_CORES", Some(value.into())).list("numbers of cores", "0,2", |core| core.parse::<u32>().ok())
    /// };
    /// assert_eq!(cores("4, 5")?, [4, 5]);
    /// let error = cores("4,five").unwrap_err();
    /// assert_eq!(error.to_string(), "MY_CORES=`4,five` are no numbers of cores; they read `0,2`");
    /// # Ok::<(), disco_core::Error>(())
    /// ```
    pub fn list<T>(&self, kind: &str, example: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
        let parts = self.text()?.into_iter().flat_map(|text| text.split(','));
        let items = parts.map(|part| parse(part.trim())).collect::<Option<_>>();
        items.ok_or_else(|| self.invalid(&format!("are no {kind}; they read `{example}`")))
    }

    /// The value as the path of a file or folder.
    pub fn path(&self) -> Option<PathBuf> {
        self.value.clone().map(PathBuf::from)
    }

    /// The error for a value that the caller refuses. `why` lists the values that the variable takes.
    pub fn refuse(&self, why: &str) -> Error {
        Error::invalid(format!("{}={}: {why}", self.name, self.value.as_deref().unwrap_or_default().display()))
    }

    fn invalid(&self, what: &str) -> Error {
        Error::invalid(format!("{}=`{}` {what}", self.name, self.value.as_deref().unwrap_or_default().display()))
    }
}

#[cfg(test)]
mod tests {
    use super::Variable;

    fn variable(value: &str) -> Variable<'static> {
        Variable::new("DISCO_X", Some(value.into()))
    }

    #[test]
    fn an_empty_value_counts_as_not_set() {
        let empty = variable("");
        assert_eq!(empty, Variable::new("DISCO_X", None));
        assert_eq!((empty.text().unwrap(), empty.flag().unwrap(), empty.path()), (None, None, None));
        assert_eq!(empty.number::<u32>().unwrap(), None);
        assert!(empty.list("words", "a,b", |part| Some(part.to_owned())).unwrap().is_empty());
    }

    #[test]
    fn values_parse_as_the_type_asked_for() {
        assert_eq!([variable("1").flag().unwrap(), variable("0").flag().unwrap()], [Some(true), Some(false)]);
        assert_eq!(variable("12").number().unwrap(), Some(12u64));
        assert_eq!(variable("2, 0").list("devices", "0,1", |part| part.parse::<u32>().ok()).unwrap(), [2, 0]);
        assert_eq!(variable("/a b").path(), Some("/a b".into()));
    }

    #[test]
    fn errors_name_the_variable_its_value_and_the_valid_values() {
        assert_eq!(variable("yes").flag().unwrap_err().to_string(), "DISCO_X=`yes` is neither 0 nor 1");
        assert_eq!(variable("-1").number::<u32>().unwrap_err().to_string(), "DISCO_X=`-1` is no number");
        let devices = variable("0,x").list("devices", "0,1", |part| part.parse::<u32>().ok());
        assert_eq!(devices.unwrap_err().to_string(), "DISCO_X=`0,x` are no devices; they read `0,1`");
        assert_eq!(variable("9").refuse("it takes 1 to 8").to_string(), "DISCO_X=9: it takes 1 to 8");
    }
}
