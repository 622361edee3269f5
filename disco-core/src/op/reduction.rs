//! Reductions.

/// The function that combines the elements of several ranks.
///
/// Integers wrap, and integer `avg` truncates toward zero; NCCL and RCCL divide the wrapped sum, `local` and `mpi` the
/// exact one. For `bool`, sum and max are *or*, prod and min are *and*, and avg is unsupported. The numbering is Disco's
/// own: vendors differ (TVM min = 2, NCCL max = 2), so each backend maps reductions by name.
///
/// ```
/// use disco_core::{Communicator, CommunicatorExt, Reduction, Result, Tensor};
///
/// /// The largest of the ranks' numbers.
/// fn largest(comm: &mut dyn Communicator, mine: f32) -> Result<f32> {
///     let number = Tensor::from_slice(&[mine], ())?;
///     comm.all_reduce_in_place(&number, Reduction::Max)?;
///     Ok(number.view::<f32>()?[0])
/// }
///
/// assert_eq!("max".parse::<Reduction>()?, Reduction::Max);
/// # Ok::<(), disco_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum over ranks.
    Sum,
    /// Product over ranks.
    Prod,
    /// Minimum; NaN if any element is NaN, except that NCCL and RCCL leave this open.
    Min,
    /// Maximum; NaN as in [`Reduction::Min`].
    Max,
    /// Sum divided by the number of ranks.
    Avg,
    /// A function of the program, by the name that [`register_reduction!`](crate::register_reduction) has registered.
    Custom(&'static str),
}

impl Reduction {
    /// The built-in reductions, in the order of their [codes](Reduction::code).
    pub const ALL: [Reduction; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    /// The name: `sum`, `prod`, `min`, `max`, `avg`, or the registered one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::Custom(name) => name,
        }
    }

    /// The position in [`Reduction::ALL`]; for all reductions of programs the number behind the last.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Avg => 4,
            Self::Custom(_) => Self::ALL.len() as u8,
        }
    }
}

crate::format_as!(Display for Reduction, |it| "{}", it.name());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions() {
        for (index, reduction) in Reduction::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(reduction.code()), index);
        }
        assert_eq!(usize::from(Reduction::Custom("x").code()), Reduction::ALL.len());
    }

    #[test]
    fn names_are_found_and_an_unknown_name_is_an_error_with_a_similar_one() {
        let why = |name: &str| name.parse::<Reduction>().unwrap_err().to_string();
        assert_eq!("max".parse::<Reduction>().unwrap(), Reduction::Max);
        assert_eq!("disco.argmax".parse::<Reduction>().unwrap(), Reduction::Custom("disco.argmax"));
        assert_eq!(why("disco.argmx"), "unknown reduction `disco.argmx`; did you mean `disco.argmax`?");
        let known = "sum, prod, min, max, avg, disco.argmax, disco.logsumexp, disco.top_k";
        assert!(why("xor").starts_with(&format!("unknown reduction `xor`; known are {known}")));
    }
}
