//! The table of checks that workers run.

use std::fmt;

use disco_core::{DType, OpKind, Reduction, Result};

use super::behaviour::{self, Behaviour};
use super::chain;
use super::collective::Collective;
use super::fixture::Fixture;
use super::mixed::Mixed;
use super::shipped::Shipped;
use super::transfer::{Pattern, Transfer};
use super::verdict::Verdict;

/// One row: a check that all workers run at the same time on one communicator.
pub(crate) enum Row {
    Collective(Collective),
    Transfer(Transfer),
    Behaviour(&'static Behaviour),
    Mixed(Mixed),
    Shipped(Shipped),
}

/// Every row.
pub(crate) fn all() -> impl Iterator<Item = Row> {
    let kinds = OpKind::ALL.into_iter().filter(|kind| !kind.is_point_to_point() && *kind != OpKind::Barrier);
    let collectives = kinds.flat_map(|kind| DType::all().flat_map(move |dtype| collectives(kind, dtype)));
    let transfers = Pattern::ALL
        .into_iter()
        .flat_map(|pattern| DType::all().map(move |dtype| Row::Transfer(Transfer { pattern, dtype })));
    let behaviours = behaviour::ALL.iter().map(Row::Behaviour);
    let mixed = Mixed::all().map(Row::Mixed);
    collectives.chain(transfers).chain(behaviours).chain(mixed).chain(Shipped::all().map(Row::Shipped))
}

/// The row with this name.
pub(crate) fn find(name: &str) -> Option<Row> {
    all().find(|row| row.to_string() == name)
}

fn collectives(kind: OpKind, dtype: DType) -> Vec<Row> {
    let reduces = matches!(kind, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter);
    let reductions: Vec<Option<Reduction>> = if reduces { Reduction::ALL.map(Some).to_vec() } else { vec![None] };
    let legal = reductions.into_iter().filter(|reduction| (dtype, *reduction) != (DType::Bool, Some(Reduction::Avg)));
    let own = (reduces && chain::DTYPES.contains(&dtype)).then_some(Some(chain::CHAIN));
    let small: Vec<_> = legal.chain(own).map(|reduction| Collective { kind, dtype, reduction, large: false }).collect();
    let large = (dtype == DType::F32).then(|| Collective { large: true, ..small[0] });
    small.into_iter().chain(large).map(Row::Collective).collect()
}

impl Row {
    /// Whether the row moves so much data that it runs in one world only.
    pub(crate) fn is_large(&self) -> bool {
        matches!(self, Self::Collective(Collective { large: true, .. }))
    }

    /// Runs the row on one rank.
    ///
    /// # Errors
    /// Errors of the communicator.
    pub(crate) fn run(&self, fixture: &mut Fixture<'_>) -> Result<Verdict> {
        match self {
            Self::Collective(collective) => collective.run(fixture),
            Self::Transfer(transfer) => transfer.run(fixture),
            Self::Behaviour(behaviour) => behaviour.run(fixture),
            Self::Mixed(mixed) => mixed.run(fixture),
            Self::Shipped(shipped) => shipped.run(fixture),
        }
    }
}

/// The check's name.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collective(collective) => f.write_str(&collective.name()),
            Self::Transfer(transfer) => f.write_str(&transfer.name()),
            Self::Behaviour(behaviour) => f.write_str(behaviour.name),
            Self::Mixed(mixed) => mixed.fmt(f),
            Self::Shipped(shipped) => shipped.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_table_has_each_operation_once_for_each_dtype_and_reduction() {
        let names: Vec<String> = all().map(|row| row.to_string()).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(names.contains(&"all_reduce::bf16::avg".into()) && names.contains(&"scatter::f8e5m2".into()));
        assert!(!names.contains(&"all_reduce::bool::avg".into()));
        let reducing = names.iter().filter(|name| name.starts_with("reduce_scatter::")).count();
        assert_eq!(reducing, 15 * 5 - 1 + chain::DTYPES.len());
        assert!(names.contains(&"reduce_scatter::u8::disco.conformance.chain".into()));
        assert!(find("send_recv::ring::u8").is_some() && find("nonsense").is_none());
    }
}
