//! The causes of an error, as a chain and as texts, and the text of a panic.

use std::any::Any;
use std::error::Error as StdError;

/// The texts of an error's causes, nearest first. A text that the previous text ends with is left out, since many
/// errors of Disco quote their cause.
#[allow(clippy::disallowed_methods, reason = "of errors of any crate there is nothing but texts")]
pub fn causes(error: &(dyn StdError + 'static)) -> Vec<String> {
    let mut before = error.to_string();
    let texts = chain(error).skip(1).map(ToString::to_string);
    texts.filter(|text| !std::mem::replace(&mut before, text.clone()).ends_with(text.as_str())).collect()
}

/// An error and its causes, nearest first.
pub(crate) fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The text of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}
