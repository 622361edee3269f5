//! What the checks of a request know about the model.

use disco_models::SamplingDefaults;

/// Facts about the model that the checks need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The name under which it is served.
    pub(crate) name: &'a str,
    /// Number of tokens.
    pub(crate) vocabulary: usize,
    /// The tokens that end a text.
    pub(crate) ends: &'a [u32],
    /// How tokens are chosen for a request that does not say it.
    pub(crate) sampling: SamplingDefaults,
    /// Whether the workers compute on the host.
    pub(crate) is_on_the_host: bool,
}
