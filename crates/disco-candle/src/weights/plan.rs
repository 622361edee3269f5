//! Split plans: rules that say how the tensors of a model are split over ranks.

use crate::weights::{Part, Split, WeightsError};

/// How the tensors of a model are split over the ranks: rules of a name pattern and a [`Split`].
///
/// The first rule whose pattern matches a tensor's name counts; `*` in a pattern matches any characters. A tensor without
/// a rule is whole on every rank. A plan is data: it is printed, written and parsed as text, one rule a line.
///
/// ```
/// use disco_candle::weights::{Block, Part, Plan, Split};
///
/// let plan = Plan::new()
///     // 9 heads of 64 rows; of 2 ranks, the first has 5 heads.
///     .with("blk.*.attn_q.weight", Split::even(0, 64))
///     // 3 heads of keys for 9 heads of queries: both ranks need the middle one.
///     .with("blk.*.attn_k.weight", Split::ranges(0, [0..128, 64..192]))
///     .with("blk.*.gate_up.weight", Split::fused(0, [Block::even(1536, 32), Block::even(1536, 32)]));
/// assert_eq!(plan.part("blk.7.attn_q.weight", &[576, 576], 1, 2)?, Part::Range { dim: 0, range: 320..576 });
/// assert_eq!(plan.part("output_norm.weight", &[576], 1, 2)?, Part::Whole);
///
/// let text = plan.to_string();
/// assert_eq!(text.lines().next(), Some("blk.*.attn_q.weight = even(dim 0, unit 64)"));
/// assert_eq!(text.parse::<Plan>()?, plan);
/// # Ok::<(), disco_candle::weights::WeightsError>(())
/// ```
///
/// # Text
/// ```text
/// # A comment.
/// *.norm.weight = whole
/// *.q.weight    = even(dim 0, unit 64)
/// *.k.weight    = ranges(dim 0, 0..128, 64..192)
/// *.qkv.weight  = fused(dim 0, 576: even(64), 192: ranges(0..128, 64..192), 32: whole)
/// ```
/// A pattern with white space, quotes, `#` or `=` stands in quotes, as a JSON string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub(super) rules: Vec<(String, Split)>,
}

impl Plan {
    /// A plan without rules: every tensor is whole on every rank.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule after the rules so far.
    #[must_use]
    pub fn with(mut self, pattern: &str, split: Split) -> Self {
        self.rules.push((pattern.to_owned(), split));
        self
    }

    /// The rules in the order in which they are tried.
    pub fn rules(&self) -> impl Iterator<Item = (&str, &Split)> {
        self.rules.iter().map(|(pattern, split)| (pattern.as_str(), split))
    }

    /// The part that rank `rank` of `size` has of tensor `name` of `shape`.
    ///
    /// # Errors
    /// [`NoSplit`](WeightsError::NoSplit) if the rule does not fit the shape or the number of ranks.
    pub fn part(&self, name: &str, shape: &[usize], rank: usize, size: usize) -> Result<Part, WeightsError> {
        let rule = self.rules.iter().find(|(pattern, _)| matches(pattern, name));
        let whole = (String::new(), Split::Whole);
        let (pattern, split) = rule.unwrap_or(&whole);
        split.part(shape, rank, size).map_err(|problem| WeightsError::NoSplit {
            tensor: name.to_owned(),
            shape: shape.to_vec(),
            size,
            rule: format!("{pattern} = {split}"),
            problem,
        })
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters. Takes at most the product of both lengths.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return name.ends_with(piece);
        }
        // The first place of each piece leaves the most characters for the others.
        let Some(place) = name.find(piece) else { return false };
        name = &name[place + piece.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_characters_and_all_else_itself() {
        let rows = [
            ("a.b", "a.b", true),
            ("a.b", "a.bc", false),
            ("*", "", true),
            ("*", "anything", true),
            ("blk.*.q", "blk.11.q", true),
            ("blk.*.q", "blk..q", true),
            ("blk.*.q", "blk.q", false),
            ("blk.*.q", "blk.1.q.bias", false),
            ("*.q.*", "a.q.q.b", true),
            ("*ab", "aab", true),
            ("a*a", "a", false),
            ("**b*", "aabaa", true),
            ("[a]*", "[a]?", true),
        ];
        for (pattern, name, expected) in rows {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
