//! Injected faults: a list of `function:rank:n=action`, separated by commas.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sync::lock;

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The call returns this code and has no effect.
    Code(i32),
    /// The call succeeds. When the stream reaches its work, the communicator gets this error, and the work never
    /// completes.
    Async(i32),
    /// The call succeeds; its work never completes.
    Hang,
    /// The call blocks until an abort or a timeout.
    Block,
}

#[derive(Debug)]
struct Rule {
    function: String,
    /// `None` for each rank.
    rank: Option<usize>,
    /// The number of the call that fails, counted from 1.
    n: u64,
    action: Action,
    /// Number of calls of each rank since the rule was set.
    seen: BTreeMap<usize, u64>,
}

static RULES: Mutex<Vec<Rule>> = Mutex::new(Vec::new());
/// Whether there are rules. Without rules, calls take no lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Replaces all rules. Returns false and changes nothing if the text is invalid.
pub(crate) fn set(text: &str) -> bool {
    let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty()).map(parse);
    let Some(rules) = rules.collect::<Option<Vec<_>>>() else { return false };
    ANY.store(!rules.is_empty(), Relaxed);
    *lock(&RULES) = rules;
    true
}

/// Counts a call, and returns its fault, if any.
pub(crate) fn next(function: &str, rank: usize) -> Option<Action> {
    super::read();
    if ANY.load(Relaxed) { count(function, rank) } else { None }
}

#[cold]
fn count(function: &str, rank: usize) -> Option<Action> {
    let mut action = None;
    for rule in lock(&RULES).iter_mut().filter(|rule| rule.function == function && rule.rank.is_none_or(|r| r == rank))
    {
        let seen = rule.seen.entry(rank).or_default();
        *seen += 1;
        if *seen == rule.n {
            action = action.or(Some(rule.action));
        }
    }
    action
}

fn parse(rule: &str) -> Option<Rule> {
    let (call, action) = rule.split_once('=')?;
    let mut call = call.split(':');
    let (function, rank, n) = (call.next()?, call.next()?, call.next()?);
    let rank = if rank == "*" { None } else { Some(rank.parse().ok()?) };
    let action = match action {
        "hang" => Action::Hang,
        "block" => Action::Block,
        action => match action.strip_prefix("async:") {
            Some(code) => Action::Async(code.parse().ok()?),
            None => Action::Code(action.parse().ok()?),
        },
    };
    // RCCL's name of a function that the double counts by NCCL's name.
    let function = if function == "ncclAllToAll" { "ncclAlltoAll" } else { function };
    let n = n.parse().ok().filter(|&n| n > 0)?;
    let is_whole = call.next().is_none() && !function.is_empty();
    is_whole.then(|| Rule { function: function.to_owned(), rank, n, action, seen: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_whole_or_not_at_all() {
        let actions = ["f:0:1=5", "f:*:2=async:6", "f:1:1=hang", "f:1:1=block"].map(|rule| parse(rule).unwrap().action);
        assert_eq!(actions, [Action::Code(5), Action::Async(6), Action::Hang, Action::Block]);
        for wrong in ["f", "f:0=5", "f:0:0=5", "f:x:1=5", "f:0:1=", "f:0:1=async:", "f:0:1:2=5", ":0:1=5"] {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn each_rank_counts_its_own_calls() {
        assert!(set("only_here:*:2=5"));
        assert_eq!(
            [0, 1, 1, 0, 0].map(|rank| next("only_here", rank)),
            [None, None, Some(Action::Code(5)), Some(Action::Code(5)), None]
        );
    }
}
