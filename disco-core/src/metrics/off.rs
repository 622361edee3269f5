//! Records nothing: the feature `metrics` is off.

use crate::op::Op;

#[inline]
pub(crate) const fn describe() {}

#[inline]
pub(crate) const fn command(_: &'static str) {}

pub(crate) struct Calls;

impl Calls {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self
    }

    #[inline]
    pub(crate) fn time<T>(&self, _: &str, work: impl FnOnce() -> T) -> T {
        work()
    }
}

#[inline]
pub(crate) const fn failure(_: &str) {}

#[inline]
pub(crate) const fn loss() {}

#[inline]
pub(crate) const fn replaced(_: usize) {}

pub(crate) struct Wait;

impl Wait {
    #[inline]
    pub(crate) const fn start(_: &'static str) -> Self {
        Self
    }

    #[inline]
    pub(crate) const fn end(self, _: bool) {}
}

pub(crate) struct Running;

impl Running {
    #[inline]
    pub(crate) const fn start(_: &[Op]) -> Self {
        Self
    }

    #[inline]
    pub(crate) const fn end(self, _: bool) {}
}
