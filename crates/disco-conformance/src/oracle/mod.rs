//! Expected results, from plain loops that share no code with any backend.

mod elements;
mod input;
mod reduction;
mod rounding;

pub(crate) use elements::{Elements, encode};
pub(crate) use input::{Values, bits, random};
pub(crate) use reduction::Expected;
