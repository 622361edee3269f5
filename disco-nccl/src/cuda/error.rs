//! Errors of the driver.

use cudarc::driver::DriverError;
use disco_core::{Error, Result};

/// Adds the name of the called function to an error of cudarc.
pub(crate) fn check<T>(function: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| error_of(function, error))
}

#[cold]
fn error_of(function: &'static str, error: DriverError) -> Error {
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
    let message = text.unwrap_or_else(|_| "the driver does not describe this code".into());
    Error::Library { backend: "cuda", function, code: error.0 as i64, message }
}
