//! Stop strings in a growing text.

/// Finds the first stop string of a text that comes in parts. Text that may be the beginning of a stop string is held
/// back until the next part decides it.
#[derive(Debug, Default)]
pub(super) struct Stops {
    stops: Vec<String>,
    held: String,
}

/// Text that is decided.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Decided {
    pub(super) text: String,
    /// The stop string that follows the text.
    pub(super) stop: Option<String>,
}

impl Stops {
    /// Stop strings, none of them empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Adds a part. Of several stop strings, the one that is complete first counts, and of those the longest: so the
    /// result does not depend on the parts. A stop string that ends in a part without `may_stop` does not count.
    pub(super) fn push(&mut self, part: &str, may_stop: bool) -> Decided {
        // Stop strings that end in the held text would have been found before, or do not count.
        let before = self.held.len();
        self.held.push_str(part);
        let found = self.stops.iter().filter(|_| may_stop).filter_map(|stop| {
            let first = floor(&self.held, (before + 1).saturating_sub(stop.len()));
            let start = first + self.held[first..].find(stop.as_str())?;
            Some((start + stop.len(), start, stop.clone()))
        });
        if let Some((_, start, stop)) = found.min() {
            self.held.truncate(start);
            return Decided { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let rest = self.held.split_off(self.undecided());
        Decided { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The held text, after the last part.
    pub(super) fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the end of the text begins that may be the beginning of a stop string.
    fn undecided(&self) -> usize {
        let ends = self.stops.iter().map(|stop| undecided(&self.held, stop));
        ends.min().unwrap_or(self.held.len())
    }
}

/// Where the longest end of a text begins with which a mark begins and after which it goes on; the length of the text if there is none.
pub(crate) fn undecided(text: &str, mark: &str) -> usize {
    let lengths = mark.char_indices().map(|(length, _)| length).filter(|length| *length > 0).rev();
    let begun = lengths.into_iter().find(|length| text.ends_with(&mark[..*length]));
    text.len() - begun.unwrap_or(0)
}

/// The last boundary of a character at `index` or before.
fn floor(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(stops: &[&str], parts: &[&str]) -> (Vec<String>, bool) {
        let mut found = Stops::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut texts = Vec::new();
        for part in parts {
            let decided = found.push(part, true);
            texts.push(decided.text);
            if decided.stop.is_some() {
                return (texts, true);
            }
        }
        texts.push(found.flush());
        (texts, false)
    }

    #[test]
    fn without_stop_strings_nothing_is_held_back() {
        assert_eq!(shown(&[], &["a", "b"]), (vec!["a".into(), "b".into(), String::new()], false));
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_held_back_until_it_is_decided() {
        assert_eq!(shown(&["END"], &["aE", "N", "x"]), (vec!["a".into(), "".into(), "ENx".into(), "".into()], false));
        assert_eq!(shown(&["END"], &["aE", "N", "Dx"]), (vec!["a".into(), "".into(), "".into()], true));
        assert_eq!(shown(&["END"], &["aEN"]), (vec!["a".into(), "EN".into()], false));
        assert_eq!(shown(&["aab"], &["aaa", "b"]), (vec!["a".into(), "".into()], true));
    }

    #[test]
    fn the_stop_string_that_is_complete_first_counts() {
        assert_eq!(shown(&["abc", "b"], &["abc"]), (vec!["a".into()], true));
        assert_eq!(shown(&["c", "abc"], &["xabc"]), (vec!["x".into()], true));
    }

    #[test]
    fn a_stop_string_that_ends_in_a_part_that_may_not_stop_does_not_count() {
        let mut found = Stops::new(vec!["a".into(), "abc".into()]);
        let mut text = |part, may_stop| {
            let Decided { text, stop } = found.push(part, may_stop);
            (text, stop.is_some())
        };
        assert_eq!(text("xa", false), ("x".into(), false));
        assert_eq!(text("b", true), ("".into(), false));
        // It began before the part that may stop.
        assert_eq!(text("c", true), ("".into(), true));
        let mut found = Stops::new(vec!["ab".into()]);
        let parts = [("ab", false), ("ab", false), ("x", true)];
        let texts: String = parts.into_iter().map(|(part, may_stop)| found.push(part, may_stop).text).collect();
        assert_eq!(texts, "ababx");
    }

    proptest! {
        #[test]
        fn the_text_does_not_depend_on_its_parts(
            text in "[ab€]{0,12}", stops in prop::collection::vec("[ab€]{1,4}", 0..4), cuts in prop::collection::vec(0usize..13, 0..6)
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
            cuts.extend([0, characters.len()]);
            cuts.sort_unstable();
            let parts: Vec<String> = cuts.windows(2).map(|cut| characters[cut[0]..cut[1]].concat()).collect();
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            let (texts, is_stopped) = shown(&stops, &parts);
            let first = text.char_indices().map(|(index, c)| index + c.len_utf8()).find_map(|end| {
                let ending = stops.iter().filter(|stop| text[..end].ends_with(**stop)).map(|stop| end - stop.len());
                ending.min()
            });
            prop_assert_eq!(is_stopped, first.is_some());
            prop_assert_eq!(texts.concat(), &text[..first.unwrap_or(text.len())]);
        }
    }
}
