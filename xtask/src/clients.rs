//! Clients for the long tests of the server of language models: a Python environment in the cache of the tests.

use anyhow::Result;

use crate::built::root;
use crate::libraries::cache;
use crate::python::{environment, interpreter};

/// The environment's folder in the cache, which the tests name, too.
const FOLDER: &str = "serving-clients";

/// Fetches the clients, unless they are there or Python has another version.
///
/// # Errors
/// They can't be fetched.
pub(crate) fn fetch() -> Result<()> {
    let Some(python) = interpreter("the clients of the server")? else { return Ok(()) };
    let requirements = root().join("crates/disco-serve/tests/clients/requirements.txt");
    environment(&python, &cache().join(FOLDER), &requirements)?;
    Ok(())
}
