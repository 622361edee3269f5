//! Texts of limited length on the board.

use super::{Board, LINE_WORDS, lines, rank_area};
use crate::sync::{AtomicU64, Ordering};

/// Words of the text with a rank's call, which the rank writes when ranks call different operations.
pub(super) const CALL_TEXT: usize = if cfg!(loom) { LINE_WORDS } else { lines(1 + 2048 / 8) };
/// Words of each text of a record.
pub(super) const TEXT: usize = if cfg!(loom) { 1 } else { 1 + 4088 / 8 };

impl Board {
    /// The call of `rank`, if the rank has written it.
    pub(crate) fn call_text(&self, rank: usize) -> Option<String> {
        read(self.span(rank_area(self.size, rank) + super::CALL_TEXT, CALL_TEXT))
    }

    /// Writes the call of `rank`. Called once.
    pub(crate) fn set_call_text(&self, rank: usize, text: &str) {
        write(self.span(rank_area(self.size, rank) + super::CALL_TEXT, CALL_TEXT), text);
        self.wake_sleepers();
    }
}

/// Writes a text, truncated to the available words: first its bytes, then their number + 1.
pub(super) fn write(words: &[AtomicU64], text: &str) {
    let Some((length, cells)) = words.split_first() else { return };
    let room = 8 * cells.len();
    let text = if text.len() <= room {
        text.to_owned()
    } else {
        const MORE: &str = "...";
        format!("{}{MORE}", &text[..text.floor_char_boundary(room.saturating_sub(MORE.len()))])
    };
    for (cell, word) in cells.iter().zip(super::to_words(text.as_bytes())) {
        cell.store(word, Ordering::Relaxed);
    }
    length.store(text.len() as u64 + 1, Ordering::Release);
}

/// The text, if it was written.
pub(super) fn read(words: &[AtomicU64]) -> Option<String> {
    let (length, cells) = words.split_first()?;
    let length = length.load(Ordering::Acquire).checked_sub(1)? as usize;
    let mut bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.load(Ordering::Relaxed).to_ne_bytes()).collect();
    bytes.truncate(length);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_is_truncated_between_characters() {
        let board = Board::new(2);
        assert_eq!(board.call_text(1), None);
        board.set_call_text(0, "");
        assert_eq!(board.call_text(0).as_deref(), Some(""));
        let long = "ä".repeat(2000);
        board.set_call_text(1, &long);
        let cut = board.call_text(1).unwrap();
        assert!(cut.ends_with("ää...") && long.starts_with(cut.trim_end_matches('.')), "{cut}");
        assert!((8 * (CALL_TEXT - 1) - 1..=8 * (CALL_TEXT - 1)).contains(&cut.len()));
    }

    #[test]
    fn invalid_words_are_read_as_some_text() {
        let board = Board::new(1);
        board.set_call_text(0, "x");
        board.at(0, super::super::CALL_TEXT).store(u64::MAX, Ordering::Relaxed);
        board.at(0, super::super::CALL_TEXT + 1).store(u64::MAX, Ordering::Relaxed);
        assert!(board.call_text(0).unwrap().starts_with('\u{fffd}'));
    }
}
