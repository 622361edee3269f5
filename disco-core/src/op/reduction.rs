//! Reductions.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// The function that combines the elements of several ranks.
///
/// Integers wrap, and integer `avg` truncates toward zero; NCCL and RCCL divide the wrapped sum, `local` and `mpi` the
/// exact one. For `bool`, sum and max are *or*, prod and min are *and*, and avg is unsupported. The numbering is Disco's
/// own: vendors differ (TVM min = 2, NCCL max = 2), so each backend maps reductions by name.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum over ranks.
    Sum,
    /// Product over ranks.
    Prod,
    /// Minimum. `local` returns NaN if any element is NaN.
    Min,
    /// Maximum. `local` returns NaN if any element is NaN.
    Max,
    /// Sum divided by the number of ranks.
    Avg,
}

impl Reduction {
    /// All reductions, in wire order.
    pub const ALL: [Reduction; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// The field's name: `sum`, `prod`, `min`, `max`, `avg`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|reduction| reduction.name() == name);
        found.ok_or_else(|| Error::invalid(format!("unknown reduction `{name}`; known are sum, prod, min, max, avg")))
    }
}
