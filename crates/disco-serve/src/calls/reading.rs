//! Marks and names at the begin of a growing text.

/// The most bytes of names and ids.
pub(super) const MAX_NAME: usize = 256;

/// Why a text is not what is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Not {
    /// It may become that.
    Yet,
    Ever,
}

/// What is decided of arguments that grow.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// More of a JSON object.
    pub(super) json: String,
    /// The bytes of the text that are done with.
    pub(super) length: usize,
    /// Whether the arguments end behind them.
    pub(super) is_end: bool,
}

/// The text behind a mark.
pub(super) fn past<'a>(text: &'a str, mark: &str) -> Result<&'a str, Not> {
    let not = if mark.starts_with(text) { Not::Yet } else { Not::Ever };
    text.strip_prefix(mark).ok_or(not)
}

/// One of two results of the same text.
pub(super) fn either<T>(one: Result<T, Not>, other: Result<T, Not>) -> Result<T, Not> {
    match (one, other) {
        (Ok(found), _) | (_, Ok(found)) => Ok(found),
        (Err(Not::Ever), Err(Not::Ever)) => Err(Not::Ever),
        _ => Err(Not::Yet),
    }
}

/// The text before a character, and the text behind it.
pub(super) fn until(text: &str, end: char) -> Result<(&str, &str), Not> {
    let (name, rest) = match text.split_once(end) {
        Some(found) => found,
        None if text.len() <= MAX_NAME && !text.contains('\n') => return Err(Not::Yet),
        None => return Err(Not::Ever),
    };
    if name.trim().is_empty() || name.contains('\n') { Err(Not::Ever) } else { Ok((name.trim(), rest)) }
}

/// A name at the begin of a text, and the text behind it.
pub(super) fn named(text: &str) -> Result<(&str, &str), Not> {
    let is_end = |c: char| c.is_whitespace() || "<>[]{}()\"'`,;｜".contains(c);
    match text.find(is_end) {
        Some(0) => Err(Not::Ever),
        Some(length) => Ok(text.split_at(length)),
        None if text.len() <= MAX_NAME => Err(Not::Yet),
        None => Err(Not::Ever),
    }
}
