//! The text of a plan: printing and parsing.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::weights::{Block, Cut, Plan, Split, WeightsError};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (pattern, split) in &self.rules {
            let bare = !pattern.is_empty()
                && !pattern.contains(|c: char| c.is_whitespace() || c.is_control() || "\"#=".contains(c));
            if bare {
                f.write_str(pattern)?
            } else {
                write!(f, "{}", serde_json::Value::from(pattern.as_str()))?
            }
            writeln!(f, " = {split}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Even { dim, unit } => write!(f, "even(dim {dim}, unit {unit})"),
            Self::Ranges { dim, ranges } => {
                write!(f, "ranges(dim {dim}")?;
                ranges.iter().try_for_each(|Range { start, end }| write!(f, ", {start}..{end}"))?;
                f.write_str(")")
            }
            Self::Fused { dim, blocks } => {
                write!(f, "fused(dim {dim}")?;
                blocks.iter().try_for_each(|Block { len, cut }| write!(f, ", {len}: {cut}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Even { unit } => write!(f, "even({unit})"),
            Self::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|Range { start, end }| format!("{start}..{end}")).collect();
                write!(f, "ranges({})", ranges.join(", "))
            }
        }
    }
}

impl FromStr for Plan {
    type Err = WeightsError;

    fn from_str(text: &str) -> Result<Self, WeightsError> {
        let mut plan = Plan::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (pattern, split) = rule(line).map_err(|problem| {
                let problem = problem.to_owned();
                WeightsError::NotARule { line: index + 1, text: line.to_owned(), problem }
            })?;
            plan.rules.push((pattern, split));
        }
        Ok(plan)
    }
}

type Parsed<T> = Result<T, &'static str>;

fn rule(line: &str) -> Parsed<(String, Split)> {
    // No split has a `=`, which a pattern in quotes may have.
    let (pattern, text) = line.rsplit_once('=').ok_or("a rule is `pattern = split`")?;
    let pattern = pattern.trim();
    let pattern = if pattern.starts_with('"') {
        serde_json::from_str(pattern).map_err(|_| "the pattern in quotes is not a JSON string")?
    } else if pattern.is_empty() {
        return Err("it has no pattern");
    } else {
        pattern.to_owned()
    };
    Ok((pattern, split(text.trim())?))
}

fn split(text: &str) -> Parsed<Split> {
    if text == "whole" {
        return Ok(Split::Whole);
    }
    let (name, arguments) = call(text)?;
    let (dim, rest) = match arguments.split_once(',') {
        Some((dim, rest)) => (dim, rest.trim()),
        None => (arguments, ""),
    };
    let dim = number(keyword(dim, "dim").ok_or("the first argument is `dim N`")?)?;
    match name {
        "even" => {
            Ok(Split::Even { dim, unit: number(keyword(rest, "unit").ok_or("the second argument is `unit N`")?)? })
        }
        "ranges" => Ok(Split::Ranges { dim, ranges: ranges(rest)? }),
        "fused" => Ok(Split::Fused { dim, blocks: arguments_of(rest).map(block).collect::<Parsed<_>>()? }),
        _ => Err("a split is `whole`, `even(…)`, `ranges(…)` or `fused(…)`"),
    }
}

fn block(text: &str) -> Parsed<Block> {
    let (len, text) = text.split_once(':').ok_or("a block is `elements: cut`")?;
    let (len, text) = (number(len)?, text.trim());
    if text == "whole" {
        return Ok(Block::new(len, Cut::Whole));
    }
    let cut = match call(text)? {
        ("even", unit) => Cut::Even { unit: number(unit)? },
        ("ranges", text) => Cut::Ranges(ranges(text)?),
        _ => return Err("a block is cut by `whole`, `even(…)` or `ranges(…)`"),
    };
    Ok(Block::new(len, cut))
}

fn ranges(text: &str) -> Parsed<Vec<Range<usize>>> {
    arguments_of(text)
        .map(|range| {
            let (start, end) = range.split_once("..").ok_or("a range is `start..end`")?;
            Ok(number(start)?..number(end)?)
        })
        .collect()
}

/// Name and arguments of `name(arguments)`.
fn call(text: &str) -> Parsed<(&str, &str)> {
    let inside = text.strip_suffix(')').and_then(|text| text.split_once('('));
    let (name, arguments) = inside.ok_or("a split is `whole` or `name(arguments)`")?;
    Ok((name.trim(), arguments.trim()))
}

/// Arguments between the commas that are not inside of parentheses. An empty text has none.
fn arguments_of(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = text.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(move |_| !text.is_empty())
}

fn keyword<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.trim().strip_prefix(word)?.strip_prefix(' ')
}

fn number(text: &str) -> Parsed<usize> {
    text.trim().parse().map_err(|_| "a number is missing or too large")
}
