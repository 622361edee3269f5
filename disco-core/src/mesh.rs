//! Meshes: the workers of a session as points of a grid with named dimensions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::WorkerId;
use crate::suggestion::{did_you_mean, similar};

/// A grid of workers with named axes, such as `dp=2,tp=4`: worker numbers in row-major order, so that the last axis
/// varies fastest. A value without workers: each use checks that it has as many places as the session has workers.
/// Cheap to clone. As an argument of a call it goes as text.
///
/// ```
/// use disco_core::{Mesh, WorkerId};
///
/// // worker          0  1  2  3  4  5  6  7
/// // dp              0  0  0  0  1  1  1  1
/// // tp              0  1  2  3  0  1  2  3
/// let mesh = Mesh::new([("dp", 2), ("tp", 4)])?;
/// assert_eq!(mesh, "dp=2,tp=4".parse()?);
/// assert_eq!(mesh.coordinates(WorkerId::new(6))?, [1, 2]);
/// assert_eq!(mesh.worker(&[1, 2])?, WorkerId::new(6));
/// assert_eq!(mesh.coordinate("tp", WorkerId::new(6))?, 2);
/// # Ok::<(), disco_core::Error>(())
/// ```
///
/// [`Mesh::along`] makes the [`Scope`](crate::Scope) of some axes, for communicators and collectives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mesh(Arc<[Axis]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Axis {
    name: String,
    size: u32,
}

/// Number of layouts that an error suggests.
const SUGGESTIONS: usize = 2;

impl Mesh {
    /// A mesh with these axes, each a name and a size.
    ///
    /// # Errors
    /// There is no axis, a name is repeated, or has another character than letters, digits, `_` and `-`; a size is 0, or
    /// there are more than 2³² - 1 places.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Result<Self> {
        let axes: Vec<(String, usize)> = axes.into_iter().map(|(name, size)| (name.into(), size)).collect();
        let refuse = |why: String| {
            let text: Vec<_> = axes.iter().map(|(name, size)| format!("{name}={size}")).collect();
            Error::invalid(format!("mesh `{}`: {why}", text.join(",")))
        };
        let (mut checked, mut places) = (Vec::with_capacity(axes.len()), 1u32);
        for (position, (name, size)) in axes.iter().enumerate() {
            let is_valid = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            if name.is_empty() || !name.chars().all(is_valid) {
                return Err(refuse(format!("`{name}` is no name of an axis, which has letters, digits, `_` and `-`")));
            }
            if axes[..position].iter().any(|(earlier, _)| earlier == name) {
                return Err(refuse(format!("two axes have the name `{name}`")));
            }
            if *size == 0 {
                return Err(refuse(format!("the size of `{name}` is 0, and must be at least 1")));
            }
            let fits = u32::try_from(*size).ok().and_then(|size| Some((size, places.checked_mul(size)?)));
            let Some((size, product)) = fits else { return Err(refuse("it has too many places".into())) };
            places = product;
            checked.push(Axis { name: name.clone(), size });
        }
        if checked.is_empty() {
            return Err(Error::invalid("a mesh needs at least one axis, such as `dp=2`"));
        }
        Ok(Self(checked.into()))
    }

    /// Names and sizes of the axes, in their order.
    pub fn axes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|axis| (axis.name.as_str(), axis.size as usize))
    }

    /// Number of places: the product of the sizes.
    pub fn size(&self) -> usize {
        self.axes().map(|(_, size)| size).product()
    }

    /// The size of an axis.
    ///
    /// # Errors
    /// There is no such axis.
    pub fn size_of(&self, axis: &str) -> Result<usize> {
        Ok(self.extent(self.position(axis)?))
    }

    /// The position of a worker along an axis, from 0.
    ///
    /// # Errors
    /// There is no such axis, or the worker is outside of the mesh.
    pub fn coordinate(&self, axis: &str, worker: WorkerId) -> Result<usize> {
        let axis = self.position(axis)?;
        self.check_worker(worker)?;
        Ok(self.coordinate_at(axis, worker))
    }

    /// The position of a worker along each axis.
    ///
    /// # Errors
    /// The worker is outside of the mesh.
    pub fn coordinates(&self, worker: WorkerId) -> Result<Vec<usize>> {
        self.check_worker(worker)?;
        Ok((0..self.0.len()).map(|axis| self.coordinate_at(axis, worker)).collect())
    }

    /// The worker with these positions along the axes.
    ///
    /// # Errors
    /// There is not one position for each axis, or a position is outside of its axis.
    pub fn worker(&self, coordinates: &[usize]) -> Result<WorkerId> {
        let fits = coordinates.len() == self.0.len() && self.axes().zip(coordinates).all(|((_, size), at)| *at < size);
        if !fits {
            return Err(Error::invalid(format!("mesh `{self}` has no place {coordinates:?}")));
        }
        let number = self.axes().zip(coordinates).fold(0, |number, ((_, size), at)| number * size + at);
        Ok(WorkerId::new(number as u32))
    }

    /// Checks that the mesh has a place for each of `workers` workers, and no other place.
    ///
    /// # Errors
    /// [`Error::Invalid`] with similar sizes that would fit.
    pub fn check(&self, workers: usize) -> Result<()> {
        let places = self.size();
        if places == workers {
            return Ok(());
        }
        let fitting: Vec<_> = self.fitting(workers).iter().map(|mesh| format!("`{mesh}`")).collect();
        let (places, workers) = (counted(places, "place"), counted(workers, "worker"));
        let fitting = fitting.join(" or ");
        Err(Error::invalid(format!("mesh `{self}` has {places}, and the session has {workers}; {fitting} would fit")))
    }

    /// Meshes with the same axes and `places` places: those whose sizes are in the nearest ratios to these, the nearest
    /// first.
    fn fitting(&self, places: usize) -> Vec<Self> {
        let small = (1..).take_while(|size| size * size <= places).filter(|size| places.is_multiple_of(*size));
        let divisors: BTreeSet<usize> = small.flat_map(|size| [size, places / size]).collect();
        // By the product of the sizes of the axes so far: those sizes, with their distance from these.
        let mut best = BTreeMap::from([(1, vec![(0.0, Vec::new())])]);
        for (_, wanted) in self.axes() {
            let mut next: BTreeMap<usize, Vec<(f64, Vec<usize>)>> = BTreeMap::new();
            for (product, found) in &best {
                for size in divisors.iter().filter(|size| (places / product).is_multiple_of(**size)) {
                    let ratio = (*size as f64 / wanted as f64).ln().abs();
                    let longer =
                        found.iter().map(|(distance, sizes)| (distance + ratio, [&sizes[..], &[*size]].concat()));
                    next.entry(product * size).or_default().extend(longer);
                }
            }
            for found in next.values_mut() {
                found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
                found.truncate(SUGGESTIONS);
            }
            best = next;
        }
        let found = best.remove(&places).unwrap_or_default().into_iter();
        let mesh = |(_, sizes): (f64, Vec<usize>)| self.axes().map(|(name, _)| name).zip(sizes).collect::<Vec<_>>();
        found.filter_map(|found| Self::new(mesh(found)).ok()).collect()
    }

    /// The position of an axis among the axes.
    pub(crate) fn position(&self, axis: &str) -> Result<usize> {
        let names = || self.axes().map(|(name, _)| name);
        names().position(|name| name == axis).ok_or_else(|| {
            Error::invalid(format!("mesh `{self}` has no axis `{axis}`{}", did_you_mean(similar(axis, names()))))
        })
    }

    /// The size of the axis at a position.
    pub(crate) fn extent(&self, axis: usize) -> usize {
        self.0[axis].size as usize
    }

    /// The name of the axis at a position.
    pub(crate) fn name(&self, axis: usize) -> &str {
        &self.0[axis].name
    }

    /// Number of axes.
    pub(crate) fn dims(&self) -> usize {
        self.0.len()
    }

    /// The coordinate of a worker along the axis at a position.
    pub(crate) fn coordinate_at(&self, axis: usize, worker: WorkerId) -> usize {
        let stride: usize = self.0[axis + 1..].iter().map(|axis| axis.size as usize).product();
        worker.index() / stride % self.extent(axis)
    }

    fn check_worker(&self, worker: WorkerId) -> Result<()> {
        if worker.index() < self.size() {
            return Ok(());
        }
        Err(Error::invalid(format!("mesh `{self}` has {}, and no {worker}", counted(self.size(), "place"))))
    }
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.axes().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&axes.join(","))
    }
}

/// Names and sizes, as [`Mesh`] prints them: `dp=2,tp=4`.
impl FromStr for Mesh {
    type Err = Error;

    #[allow(clippy::disallowed_methods, reason = "a user's text, and the form in which a mesh is an argument")]
    fn from_str(text: &str) -> Result<Self> {
        let axis = |part: &str| {
            let (name, size) = part.split_once('=')?;
            Some((name.to_owned(), size.parse().ok()?))
        };
        let axes: Option<Vec<(String, usize)>> = text.split(',').map(axis).collect();
        Self::new(axes.ok_or_else(|| {
            Error::invalid(format!("`{text}` is no mesh, which is names and sizes such as `dp=2,tp=4`"))
        })?)
    }
}

impl From<Mesh> for String {
    fn from(mesh: Mesh) -> Self {
        mesh.to_string()
    }
}

impl TryFrom<String> for Mesh {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error<T: fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    fn mesh(text: &str) -> Mesh {
        text.parse().unwrap()
    }

    proptest! {
        #[test]
        fn coordinates_and_workers_are_inverse(sizes in proptest::collection::vec(1usize..5, 1..5)) {
            let mesh = Mesh::new(sizes.iter().enumerate().map(|(axis, size)| (format!("a{axis}"), *size))).unwrap();
            prop_assert_eq!(&mesh.to_string().parse::<Mesh>().unwrap(), &mesh);
            // An odometer: the last axis turns first.
            let mut expected = vec![0; sizes.len()];
            for worker in (0..mesh.size() as u32).map(WorkerId::new) {
                let coordinates = mesh.coordinates(worker).unwrap();
                prop_assert_eq!(&coordinates, &expected);
                prop_assert_eq!(mesh.worker(&coordinates).unwrap(), worker);
                for (axis, coordinate) in coordinates.iter().enumerate() {
                    prop_assert_eq!(mesh.coordinate(&format!("a{axis}"), worker).unwrap(), *coordinate);
                }
                for (digit, size) in expected.iter_mut().zip(&sizes).rev() {
                    *digit = (*digit + 1) % size;
                    if *digit > 0 {
                        break;
                    }
                }
            }
            prop_assert!(mesh.coordinates(WorkerId::new(mesh.size() as u32)).is_err());
        }

        #[test]
        fn suggested_sizes_are_the_nearest_that_fit(
            sizes in proptest::collection::vec(1usize..7, 1..4),
            workers in 1usize..40,
        ) {
            let mesh = Mesh::new(sizes.iter().enumerate().map(|(axis, size)| (format!("a{axis}"), *size))).unwrap();
            // All sizes up to the number of workers, by counting.
            let mut distances = Vec::new();
            for number in 0..workers.pow(sizes.len() as u32) {
                let digits: Vec<_> = (0..sizes.len() as u32).map(|digit| number / workers.pow(digit) % workers + 1).collect();
                if digits.iter().product::<usize>() == workers {
                    distances.push(distance(&sizes, &digits));
                }
            }
            distances.sort_by(f64::total_cmp);
            distances.truncate(SUGGESTIONS);
            let found = mesh.fitting(workers);
            prop_assert_eq!(found.len(), distances.len());
            for (found, expected) in found.iter().zip(distances) {
                prop_assert_eq!(found.size(), workers);
                let found: Vec<_> = found.axes().map(|(_, size)| size).collect();
                prop_assert!((distance(&sizes, &found) - expected).abs() < 1e-9);
            }
        }
    }

    fn distance(sizes: &[usize], others: &[usize]) -> f64 {
        sizes.iter().zip(others).map(|(a, b)| (*a as f64 / *b as f64).ln().abs()).sum()
    }

    #[test]
    fn a_mesh_that_does_not_fit_names_sizes_that_would() {
        assert!(mesh("dp=2,tp=4").check(8).is_ok());
        assert_eq!(
            error(mesh("dp=2,tp=3").check(8)),
            "mesh `dp=2,tp=3` has 6 places, and the session has 8 workers; `dp=2,tp=4` or `dp=4,tp=2` would fit"
        );
        assert_eq!(
            error(mesh("dp=3").check(1)),
            "mesh `dp=3` has 3 places, and the session has 1 worker; `dp=1` would fit"
        );
        // Many axes and many divisors: each step keeps the best only.
        let many = "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2,i=2,j=2";
        assert!(error(mesh(many).check(720_720)).starts_with(&format!("mesh `{many}` has 1024 places")));
    }

    #[test]
    fn invalid_meshes_are_refused_with_the_reason() {
        let refused = |text: &str| error(text.parse::<Mesh>());
        assert_eq!(refused("dp=2,dp=4"), "mesh `dp=2,dp=4`: two axes have the name `dp`");
        assert_eq!(refused("dp=0,tp=4"), "mesh `dp=0,tp=4`: the size of `dp` is 0, and must be at least 1");
        assert_eq!(refused("=2"), "mesh `=2`: `` is no name of an axis, which has letters, digits, `_` and `-`");
        assert_eq!(
            refused("a b=2"),
            "mesh `a b=2`: `a b` is no name of an axis, which has letters, digits, `_` and `-`"
        );
        assert_eq!(refused("a=65536,b=65536"), "mesh `a=65536,b=65536`: it has too many places");
        for text in ["", "dp", "dp=2,", "dp=-1", "dp=two"] {
            assert_eq!(refused(text), format!("`{text}` is no mesh, which is names and sizes such as `dp=2,tp=4`"));
        }
        assert_eq!(error(Mesh::new::<&str>([])), "a mesh needs at least one axis, such as `dp=2`");
    }

    #[test]
    fn an_unknown_axis_or_place_is_an_error_with_the_known_ones() {
        let mesh = mesh("data=2,tensor=4");
        assert_eq!(error(mesh.size_of("tensr")), "mesh `data=2,tensor=4` has no axis `tensr`; did you mean `tensor`?");
        assert_eq!(error(mesh.coordinate("tp", WorkerId::new(0))), "mesh `data=2,tensor=4` has no axis `tp`");
        assert_eq!(error(mesh.worker(&[1, 4])), "mesh `data=2,tensor=4` has no place [1, 4]");
        assert_eq!(error(mesh.worker(&[1])), "mesh `data=2,tensor=4` has no place [1]");
        assert_eq!(error(mesh.coordinates(WorkerId::new(8))), "mesh `data=2,tensor=4` has 8 places, and no worker 8");
    }
}
