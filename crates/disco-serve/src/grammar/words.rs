//! What the compiler says of a grammar.

/// The compiler's words about an error, which may have several lines and a part of the grammar, in one short line.
pub(super) fn plain(error: &str) -> String {
    const MOST: usize = 300;
    let error = error.replace("<non-verbose/>", "");
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}
