//! Guesses of a text's next tokens: where its last tokens stood before, the same tokens may follow (prompt lookup decoding,
//! <https://github.com/apoorvumang/prompt-lookup-decoding>).
//!
//! A guess costs nothing until it is computed as a [draft](super::step::Row::drafted), behind the last token in the same step, and the
//! tokens of a refused draft cost time. So a text has drafts once it has followed an earlier place for some tokens, as many at once as it has followed, and
//! again only after a longer way if too few were right.

/// The last tokens that are looked up.
const MOST: usize = 3;

/// A text has drafts once it has followed an earlier place for so many tokens, those looked up included.
const FOLLOWED: usize = 4;

/// Where a text may go on with a place that it has left, in tokens from there. Two tokens are enough to follow it.
const NEAR: usize = 8;

/// The same as [`FOLLOWED`] where drafts do not pay.
const FOLLOWED_FAR: usize = 24;

/// Drafts do not pay if less than this part of the last ones was right: a token behind another one costs about so much of a step.
const RIGHT: f32 = 0.4;

/// How fast earlier drafts are forgotten.
const KEPT: f32 = 0.8;

/// The guesses of a sequence.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// The place of the token that may be the next one.
    source: Option<usize>,
    /// Number of tokens before it that the text has followed.
    followed: usize,
    /// Where the text has left a place that it had followed: after an edit it may be there again.
    left: Option<usize>,
    /// Tokens of the last drafts, and of those the right ones.
    drafted: f32,
    right: f32,
}

impl Drafts {
    /// Follows the last one of the `tokens` of a prompt and its text.
    pub(super) fn follow(&mut self, tokens: &[u32]) {
        let Some((last, before)) = tokens.split_last() else { return };
        let next = self.source.filter(|source| before.get(*source) == Some(last)).map(|source| source + 1);
        match next {
            Some(next) if self.followed + 1 >= FOLLOWED => {
                (self.source, self.followed, self.left) = (Some(next), self.followed + 1, None);
                return;
            }
            _ if self.followed >= FOLLOWED => self.left = self.source,
            _ => {}
        }
        let near =
            self.left.and_then(|left| (left..(left + NEAR).min(before.len())).find(|end| is_again(tokens, *end)));
        let followed = near.map(|place| (place, FOLLOWED));
        let followed = followed.or_else(|| next.map(|next| (next, self.followed + 1))).or_else(|| found(tokens));
        (self.source, self.followed) = followed.map_or((None, 0), |(place, count)| (Some(place), count));
    }

    /// Whether the next tokens are worth a draft.
    pub(super) fn is_ready(&self) -> bool {
        let pays = self.right >= RIGHT * self.drafted;
        self.source.is_some() && self.followed >= if pays { FOLLOWED } else { FOLLOWED_FAR }
    }

    /// At most `most` tokens that may follow `tokens`.
    pub(super) fn draft(&self, tokens: &[u32], most: usize) -> Vec<u32> {
        let Some(source) = self.source.filter(|_| self.is_ready()) else { return Vec::new() };
        let most = most.min(self.followed);
        // Where the text repeats itself, its own draft is repeated.
        let cycle = tokens.len().saturating_sub(source).max(1);
        (0..most).filter_map(|index| tokens.get(source + index % cycle)).copied().collect()
    }

    /// Notes how many tokens of a draft were right.
    pub(super) fn judge(&mut self, drafted: usize, right: usize) {
        self.drafted = self.drafted * KEPT + drafted as f32;
        self.right = self.right * KEPT + right as f32;
    }
}

/// Whether the last two tokens are before a place, too.
fn is_again(tokens: &[u32], place: usize) -> bool {
    place >= 2 && tokens.ends_with(&tokens[place - 2..place])
}

/// The place behind the last earlier occurrence of the last tokens, of as many as possible, and their number.
fn found(tokens: &[u32]) -> Option<(usize, usize)> {
    let mut best: Option<(usize, usize)> = None;
    for end in (1..tokens.len()).rev() {
        let before = tokens[..end].iter().rev().zip(tokens.iter().rev()).take(MOST);
        let count = before.take_while(|(earlier, last)| earlier == last).count();
        if count > best.map_or(0, |(_, count)| count) {
            best = Some((end, count));
        }
        if count == MOST {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn followed(tokens: &[u32], from: usize) -> Drafts {
        let mut drafts = Drafts::default();
        (from..=tokens.len()).for_each(|end| drafts.follow(&tokens[..end]));
        drafts
    }

    #[test]
    fn the_longest_and_last_earlier_occurrence_is_found() {
        assert_eq!(found(&[1, 2, 3, 9, 2, 3, 8, 1, 2, 3]), Some((3, 3)));
        assert_eq!(found(&[5, 3, 9, 5, 3, 8, 5, 3]), Some((5, 2)));
        assert_eq!(found(&[1, 2, 3]), None);
        assert_eq!(found(&[4, 4]), Some((1, 1)));
    }

    #[test]
    fn a_text_that_follows_an_earlier_place_has_longer_and_longer_drafts() {
        let prompt: Vec<u32> = (0..40).collect();
        let text = |count: usize| prompt.iter().chain(&prompt[..count]).copied().collect::<Vec<u32>>();
        assert!(!followed(&text(3), 41).is_ready());
        assert_eq!(followed(&text(4), 41).draft(&text(4), 16), [4, 5, 6, 7]);
        assert_eq!(followed(&text(12), 41).draft(&text(12), 16), (12..24).collect::<Vec<_>>());
        assert_eq!(followed(&text(20), 41).draft(&text(20), 3), [20, 21, 22]);
        let mut other = text(20);
        other.push(99);
        assert!(!followed(&other, 41).is_ready());
    }

    #[test]
    fn behind_an_edit_a_text_goes_on_with_the_place_that_it_has_left() {
        // The third number of each ten is another one; the last ten are twice in the prompt.
        let prompt: Vec<u32> = (0..40).chain(30..40).collect();
        let edited = |at: u32| if at % 10 == 3 { 99 } else { at };
        let tokens: Vec<u32> = prompt.iter().copied().chain((0..36).map(edited)).collect();
        let drafts = followed(&tokens, 51);
        assert_eq!(drafts.draft(&tokens, 16), [36, 37, 38, 39]);
        assert_eq!(drafts.source, Some(36));
    }

    #[test]
    fn a_text_that_repeats_itself_has_a_draft_beyond_its_end() {
        let tokens = [1, 2, 1, 2, 1, 2, 1, 2, 1, 2];
        assert_eq!(followed(&tokens, 1).draft(&tokens, 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn drafts_that_are_wrong_come_again_after_a_longer_way_only() {
        let tokens: Vec<u32> = (0..40).chain(0..12).collect();
        let mut drafts = followed(&tokens, 41);
        drafts.judge(8, 1);
        assert!(!drafts.is_ready());
        drafts.judge(8, 8);
        assert!(drafts.is_ready());
        let mut far = followed(&(0..40).chain(0..30).collect::<Vec<_>>(), 41);
        far.judge(8, 0);
        assert!(far.is_ready());
    }
}
