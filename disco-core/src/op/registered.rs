//! Reductions of programs: their registry, and the call of their functions.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use super::{Op, Reduction};
use crate::codec::fnv1a;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result, panic_text};
use crate::suggestion::{did_you_mean, similar};

/// An entry of a reduction in the registry; made by [`register_reduction!`](crate::register_reduction).
#[allow(clippy::exhaustive_structs, reason = "`register_reduction!` writes one in the crate of the function")]
#[derive(Clone, Copy, Debug)]
pub struct ReductionEntry {
    /// Name for [`Reduction::Custom`]. Prefix it with your program's name.
    pub name: &'static str,
    /// The dtype of the tensors.
    pub dtype: DType,
    /// The function, on the bytes of elements.
    pub merge: fn(&mut [u8], &[u8], usize) -> Result<()>,
    /// The place of the registration: `module at file:line`.
    pub place: &'static str,
}

inventory::collect!(ReductionEntry);

/// Registers a reduction: `register_reduction!("name", f32, function);`.
///
/// The function is `fn(into: &mut [f32], from: &[f32], row: usize)`. It merges `from` into `into`, which have the same
/// number of whole rows of `row` elements. A row is what the reduction combines: the last dimension of the tensors, one
/// element for a scalar. How many rows the function gets at once depends on the backend, so a row must not depend on
/// another one. Ranks are merged in their order, from rank 0 on; so the function need neither commute nor be
/// associative, and a function whose result depends only on its arguments gives all ranks the same bits.
///
/// The name is registered once for each dtype: `i8` to `i64`, `u8` to `u64`, `f16`, `bf16`, `f32` or `f64`. A session
/// does not start if two functions have the same name and dtype. A panic of the function is an error of its worker,
/// and ends the operation on all ranks. The function can't be interrupted.
///
/// ```
/// use disco_core::{CommunicatorExt, Reduction, Result, Tensor, WorkerContext};
///
/// /// The product of 2 x 2 matrices, in row-major order.
/// fn multiply(into: &mut [f64], from: &[f64], _row: usize) {
///     for (a, b) in into.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks::<4>().0) {
///         *a = [a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2], a[2] * b[1] + a[3] * b[3]];
///     }
/// }
///
/// disco_core::register_reduction!("docs.matrix_product", f64, multiply);
///
/// /// The products over all ranks, of tensors of the shape `[matrices, 4]`.
/// fn product(ctx: &mut WorkerContext, matrices: Tensor) -> Result<Tensor> {
///     ctx.comm()?.all_reduce_in_place(&matrices, Reduction::Custom("docs.matrix_product"))?;
///     Ok(matrices)
/// }
/// ```
#[macro_export]
macro_rules! register_reduction {
    ($name:expr, $element:ty, $function:expr) => {
        $crate::inventory::submit! {
            $crate::op::ReductionEntry {
                name: $name,
                dtype: <$element as $crate::Element>::DTYPE,
                merge: |into, from, row| $crate::op::merge_elements::<$element>($function, into, from, row),
                place: ::std::concat!(::std::module_path!(), " at ", ::std::file!(), ":", ::std::line!()),
            }
        }
    };
}

/// Calls the function of a reduction on elements of type `T`.
///
/// # Errors
/// The bytes are not aligned for `T`.
#[doc(hidden)]
pub fn merge_elements<T: Element>(
    function: fn(&mut [T], &[T], usize),
    into: &mut [u8],
    from: &[u8],
    row: usize,
) -> Result<()> {
    let elements = bytemuck::try_cast_slice_mut(into).and_then(|into| Ok((into, bytemuck::try_cast_slice(from)?)));
    let (into, from) = elements.map_err(|error| Error::protocol(error.to_string()))?;
    function(into, from, row);
    Ok(())
}

/// The registered names, sorted, each once.
fn names() -> impl Iterator<Item = &'static str> {
    let mut names: Vec<_> = entries().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter()
}

/// Finds built-in and registered reductions.
impl FromStr for Reduction {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = || Self::ALL.into_iter().chain(names().map(Self::Custom));
        let unknown = || {
            let names = || known().map(Self::name);
            let end = match similar(name, names()) {
                Some(name) => did_you_mean(Some(name)),
                None => format!("; known are {}", names().collect::<Vec<_>>().join(", ")),
            };
            Error::invalid(format!("unknown reduction `{name}`{end}"))
        };
        known().find(|reduction| reduction.name() == name).ok_or_else(unknown)
    }
}

fn entries() -> impl Iterator<Item = &'static ReductionEntry> {
    inventory::iter::<ReductionEntry>.into_iter()
}

/// Checks that each reduction is registered once for each dtype, and that none has the name of a built-in one.
///
/// # Errors
/// [`Error::Invalid`] with the name and the places.
pub(crate) fn check_registered() -> Result<()> {
    check(entries().collect())
}

fn check(mut entries: Vec<&ReductionEntry>) -> Result<()> {
    entries.sort_unstable_by_key(|entry| (entry.name, entry.dtype.name(), entry.place));
    if let Some(entry) = entries.iter().find(|entry| Reduction::ALL.iter().any(|known| known.name() == entry.name)) {
        let ReductionEntry { name, place, .. } = entry;
        return Err(Error::invalid(format!("`{name}` is a built-in reduction: give the one in {place} another name")));
    }
    match entries.windows(2).find(|pair| (pair[0].name, pair[0].dtype) == (pair[1].name, pair[1].dtype)) {
        None => Ok(()),
        Some(pair) => Err(Error::invalid(format!(
            "two reductions are registered as `{}` for {}: in {} and in {}; give one of them another name",
            pair[0].name, pair[0].dtype, pair[0].place, pair[1].place
        ))),
    }
}

/// The function of an operation with [`Reduction::Custom`], and the rows of its tensors.
#[derive(Clone, Copy)]
pub struct Merge<'o> {
    op: &'o Op,
    entry: &'static ReductionEntry,
    row: usize,
}

impl<'o> Merge<'o> {
    /// The function of an operation; `None` if it has no reduction, or a built-in one.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the reduction is not registered, or not for the dtype of the operation.
    pub fn of(op: &'o Op) -> Result<Option<Self>> {
        let Some((Reduction::Custom(name), dtype)) = op.reduction().zip(op.dtype()) else { return Ok(None) };
        match entries().find(|entry| entry.name == name && entry.dtype == dtype) {
            Some(entry) => Ok(Some(Self { op, entry, row: op.row() })),
            None => Err(not_registered(op, name, dtype)),
        }
    }

    /// Bytes of a row: all blocks that are merged are multiples of it.
    pub fn row_bytes(&self) -> usize {
        self.row * self.entry.dtype.size()
    }

    /// Merges `from` into `into`: rows of one rank into the merged rows of all lower ranks. Both start at multiples of
    /// the element's size.
    ///
    /// # Errors
    /// [`Error::Panicked`] with the operation and the reduction; [`Error::Protocol`]: the blocks are not aligned, or
    /// are no equal numbers of whole rows.
    pub fn merge(&self, into: &mut [u8], from: &[u8]) -> Result<()> {
        if into.len() != from.len() || !into.len().is_multiple_of(self.row_bytes()) {
            let (into, from, row) = (into.len(), from.len(), self.row_bytes());
            return Err(self.wrong(format!("can't merge {from} bytes into {into} bytes, in rows of {row} bytes")));
        }
        // A panic can only leave wrong elements in `into`, which is dropped.
        match catch_unwind(AssertUnwindSafe(|| (self.entry.merge)(into, from, self.row))) {
            Ok(merged) => merged.map_err(|error| self.wrong(error)),
            Err(payload) => Err(Error::Panicked { operation: self.to_string(), text: panic_text(&*payload) }),
        }
    }

    /// Merges all of the equal `blocks` in `bytes` into the first one, in their order.
    ///
    /// # Errors
    /// As for [`Merge::merge`].
    pub fn merge_blocks(&self, bytes: &mut [u8], blocks: usize) -> Result<()> {
        let block = bytes.len() / blocks.max(1);
        if block == 0 {
            return Ok(());
        }
        let (into, rest) = bytes.split_at_mut(block);
        rest.chunks_exact(block).try_for_each(|from| self.merge(into, from))
    }

    fn wrong(&self, why: impl fmt::Display) -> Error {
        Error::protocol(format!("{self}: {why}"))
    }
}

// Like `` all_reduce: the reduction `docs.product` ``.
crate::format_as!(Display for Merge<'_>, |it| "{}: the reduction `{}`", it.op.kind(), it.entry.name);

crate::format_as!(Debug for Merge<'_>, |it| "<{it} in rows of {}>", it.row);

impl Op {
    /// Elements of a row: the last dimension of the tensors, which a [`Reduction::Custom`] combines as a whole; 1 for a
    /// scalar and an empty row.
    pub fn row(&self) -> usize {
        let tensor = self.src().or(self.dst());
        tensor.and_then(|tensor| tensor.shape().last()).map_or(1, |row| (*row).max(1) as usize)
    }

    /// A hash of what ranks must agree on beside kind, dtype, count and root: 0 unless the reduction is a program's
    /// own; then of its name and its row. Equal on all ranks that make the same call.
    #[inline]
    pub fn merge_digest(&self) -> u64 {
        match self.reduction() {
            Some(Reduction::Custom(name)) => fnv1a(format!("{name} in rows of {}", self.row()).as_bytes()),
            _ => 0,
        }
    }
}

fn not_registered(op: &Op, name: &str, dtype: DType) -> Error {
    let mut dtypes: Vec<_> = entries().filter(|entry| entry.name == name).map(|entry| entry.dtype.name()).collect();
    dtypes.sort_unstable();
    let why = if dtypes.is_empty() {
        format!("no reduction `{name}` is registered{}", did_you_mean(similar(name, names())))
    } else {
        format!("the reduction `{name}` is registered for {}, not for {dtype}", dtypes.join(", "))
    };
    Error::invalid(format!("{}: {why}", op.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    fn weigh(into: &mut [i32], from: &[i32], row: usize) {
        assert!(!from.contains(&13), "13 is unlucky");
        into.iter_mut().zip(from).for_each(|(into, from)| *into = *into * row as i32 + from);
    }

    crate::register_reduction!("test.weigh", i32, weigh);
    crate::register_reduction!("test.weigh", i64, |_, _, _| {});

    fn all_reduce(name: &'static str, elements: &[i32], shape: &[i64]) -> Op {
        let dst = Tensor::from_slice(elements, shape).unwrap();
        Op::AllReduce { src: None, dst, reduction: Reduction::Custom(name) }
    }

    #[test]
    fn blocks_are_merged_in_their_order() {
        let op = all_reduce("test.weigh", &[0; 2], &[1, 2]);
        let merge = Merge::of(&op).unwrap().unwrap();
        let mut elements = [1, 2, 3, 4, 5, 6];
        merge.merge_blocks(bytemuck::cast_slice_mut(&mut elements), 3).unwrap();
        assert_eq!(elements[..2], [2 * (2 + 3) + 5, 2 * (2 * 2 + 4) + 6]);
        let wrong = merge.merge(&mut [0; 4], &[0; 4]).unwrap_err().to_string();
        let name = "all_reduce: the reduction `test.weigh`";
        assert_eq!(wrong, format!("{name}: can't merge 4 bytes into 4 bytes, in rows of 8 bytes"));
        let aligned = [0u64; 3];
        let shifted = &bytemuck::cast_slice(&aligned)[1..9];
        assert!(merge.merge(&mut [0; 8], shifted).unwrap_err().to_string().starts_with(name));
    }

    #[test]
    fn a_panic_is_an_error_with_the_operation_and_the_name() {
        let op = all_reduce("test.weigh", &[0], &[]);
        let mut elements = [1, 13];
        let bytes = bytemuck::cast_slice_mut(&mut elements);
        let error = Merge::of(&op).unwrap().unwrap().merge_blocks(bytes, 2).unwrap_err();
        assert_eq!(error.to_string(), "all_reduce: the reduction `test.weigh` panicked: 13 is unlucky");
        assert_eq!(error.kind(), crate::error::ErrorKind::Panicked);
    }

    #[test]
    fn an_unknown_name_or_dtype_is_an_error() {
        let why = |op: Op| Merge::of(&op).unwrap_err().to_string();
        let op = all_reduce("test.weight", &[0], &[1]);
        assert_eq!(why(op), "all_reduce: no reduction `test.weight` is registered; did you mean `test.weigh`?");
        let dst = Tensor::zeros(DType::F16, [1]).unwrap();
        let op = Op::AllReduce { src: None, dst, reduction: Reduction::Custom("test.weigh") };
        assert_eq!(why(op), "all_reduce: the reduction `test.weigh` is registered for i32, i64, not for f16");
    }

    #[test]
    fn a_name_that_is_registered_twice_or_built_in_is_an_error_with_its_places() {
        let entry = |name, dtype, place| ReductionEntry { name, dtype, merge: |_, _, _| Ok(()), place };
        let (first, second) = (entry("x.y", DType::F32, "x at a.rs:1"), entry("x.y", DType::F64, "x at a.rs:2"));
        check(vec![&first, &second]).unwrap();
        let again = entry("x.y", DType::F32, "z at b.rs:9");
        assert_eq!(
            check(vec![&again, &second, &first]).unwrap_err().to_string(),
            "two reductions are registered as `x.y` for f32: in x at a.rs:1 and in z at b.rs:9; give one of them another \
             name"
        );
        assert_eq!(
            check(vec![&entry("max", DType::F32, "x at a.rs:3")]).unwrap_err().to_string(),
            "`max` is a built-in reduction: give the one in x at a.rs:3 another name"
        );
        check_registered().unwrap();
    }

    #[test]
    fn digests_differ_by_name_and_row() {
        let digest = |name, shape: &[i64]| all_reduce(name, &[0; 4], shape).merge_digest();
        assert_eq!(digest("test.weigh", &[2, 2]), digest("test.weigh", &[2, 1, 2]));
        assert_ne!(digest("test.weigh", &[2, 2]), digest("test.weigh", &[1, 4]));
        assert_ne!(digest("test.weigh", &[4]), digest("test.other", &[4]));
        let sum = Op::AllReduce { src: None, dst: Tensor::zeros(DType::I32, [4]).unwrap(), reduction: Reduction::Sum };
        assert_eq!(sum.merge_digest(), 0);
    }
}
