//! Split plans: their rules, and their text.

use disco_candle::weights::{Block, Cut, Part, Plan, Split};
use proptest::prelude::*;

fn range(len: usize) -> impl Strategy<Value = std::ops::Range<usize>> {
    (0..=len, 0..=len).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn cut() -> impl Strategy<Value = Cut> {
    prop_oneof![
        Just(Cut::Whole),
        any::<usize>().prop_map(|unit| Cut::Even { unit }),
        prop::collection::vec(range(1 << 40), 0..4).prop_map(Cut::Ranges),
    ]
}

fn split() -> impl Strategy<Value = Split> {
    prop_oneof![
        Just(Split::Whole),
        any::<(usize, usize)>().prop_map(|(dim, unit)| Split::even(dim, unit)),
        (0usize..3, prop::collection::vec(range(1000), 0..4)).prop_map(|(dim, ranges)| Split::ranges(dim, ranges)),
        (0usize..3, prop::collection::vec((any::<usize>(), cut()), 0..4))
            .prop_map(|(dim, blocks)| { Split::fused(dim, blocks.into_iter().map(|(len, cut)| Block::new(len, cut))) }),
    ]
}

fn rows(plan: &Plan, len: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    match plan.part("t", &[len], rank, size).unwrap() {
        Part::Range { dim: 0, range } => range,
        part => panic!("{part}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_that_is_printed_and_parsed_is_the_same(
        rules in prop::collection::vec(("(?s).{0,12}|[a-z.*]{1,20}", split()), 0..6),
    ) {
        let plan = rules.iter().fold(Plan::new(), |plan, (pattern, split)| plan.with(pattern, split.clone()));
        let text = plan.to_string();
        prop_assert_eq!(text.parse::<Plan>().unwrap(), plan, "{}", text);
    }

    #[test]
    fn an_even_split_covers_each_unit_once_and_gives_the_remainder_to_the_first_ranks(
        units in 0usize..40, unit in 1usize..70, size in 1usize..9,
    ) {
        let plan = Plan::new().with("*", Split::even(0, unit));
        let mut end = 0;
        let mut lens = Vec::new();
        for rank in 0..size {
            let range = rows(&plan, units * unit, rank, size);
            prop_assert_eq!(range.start, end);
            prop_assert!(range.len().is_multiple_of(unit));
            end = range.end;
            lens.push(range.len() / unit);
        }
        prop_assert_eq!(end, units * unit);
        prop_assert!(lens.is_sorted_by(|a, b| a >= b) && lens[0] - lens[size - 1] <= 1, "{:?}", lens);
    }
}

#[test]
fn the_first_rule_that_matches_counts() {
    let plan = Plan::new().with("a.*", Split::even(0, 2)).with("*.b", Split::even(1, 1)).with("*", Split::Whole);
    let part = |name| plan.part(name, &[4, 4], 0, 2).unwrap();
    assert_eq!(part("a.b"), Part::Range { dim: 0, range: 0..2 });
    assert_eq!(part("c.b"), Part::Range { dim: 1, range: 0..2 });
    assert_eq!(part("c.d"), Part::Whole);
    assert_eq!(Plan::new().part("x", &[4], 1, 2).unwrap(), Part::Whole, "no rule");
}

#[test]
fn each_block_of_a_fused_tensor_is_cut_on_its_own() {
    // 4 heads of queries and 2 of keys and values, each of 8 rows; and 2 rows for all ranks.
    let kv = || Block::new(16, Cut::Ranges(vec![0..8, 0..16, 8..16]));
    let blocks = [Block::even(32, 8), kv(), kv(), Block::new(2, Cut::Whole)];
    let plan = Plan::new().with("qkv", Split::fused(0, blocks));
    let ranges = |rank| match plan.part("qkv", &[66, 5], rank, 3).unwrap() {
        Part::Ranges { dim: 0, ranges } => ranges,
        part => panic!("{part}"),
    };
    assert_eq!(ranges(0), [0..16, 32..40, 48..56, 64..66]);
    // The blocks of keys, values and the last two rows are neighbours on rank 1.
    assert_eq!(ranges(1), [16..24, 32..66]);
    assert_eq!(ranges(2), [24..32, 40..48, 56..66]);
}

#[test]
fn a_rule_that_does_not_fit_is_an_error_that_names_the_tensor_and_the_rule() {
    let error = |split, size| Plan::new().with("w*", split).part("w.1", &[10, 3], 0, size).unwrap_err().to_string();
    let start = "tensor `w.1` of shape [10, 3] can't be split over 2 ranks by ";
    assert_eq!(
        error(Split::even(0, 4), 2),
        format!("{start}`w* = even(dim 0, unit 4)`: 10 elements are not whole units of 4")
    );
    assert_eq!(
        error(Split::even(2, 1), 2),
        format!("{start}`w* = even(dim 2, unit 1)`: dimension 2 does not exist; the first dimension is 0")
    );
    assert_eq!(
        error(Split::ranges(1, [0..1, 1..2, 2..3]), 2),
        format!("{start}`w* = ranges(dim 1, 0..1, 1..2, 2..3)`: the rule has ranges of 3 ranks")
    );
    assert_eq!(
        error(Split::ranges(1, [0..4, 1..2]), 2),
        format!("{start}`w* = ranges(dim 1, 0..4, 1..2)`: the range 0..4 of rank 0 is not inside of 0..3")
    );
    assert_eq!(
        error(Split::fused(0, [Block::even(4, 2), Block::even(4, 2)]), 2),
        format!(
            "{start}`w* = fused(dim 0, 4: even(2), 4: even(2))`: the blocks have 8 elements, and the dimension has 10"
        )
    );
    assert!(error(Split::Whole, 0).ends_with("over 0 ranks by `w* = whole`: there is no rank 0"));
}

#[test]
fn a_text_that_is_no_plan_is_an_error_that_names_the_line() {
    let error = |text: &str| text.parse::<Plan>().unwrap_err().to_string();
    assert_eq!(
        error("# comment\n\na = whole\nb: even"),
        "line 4 of the split plan, `b: even`, is not a rule: a rule is `pattern = split`"
    );
    assert_eq!(
        error("a = odd(dim 0)"),
        "line 1 of the split plan, `a = odd(dim 0)`, is not a rule: a split is `whole`, `even(…)`, `ranges(…)` or `fused(…)`"
    );
    for text in [
        "= whole",
        "a =",
        "a = even(dim 0)",
        "a = even(dim 0, unit x)",
        "a = ranges(dim 0, 1-2)",
        "a = fused(dim 0, 3)",
    ] {
        assert!(error(text).starts_with(&format!("line 1 of the split plan, `{text}`, is not a rule: ")), "{text}");
    }
}
