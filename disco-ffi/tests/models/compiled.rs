//! Models that TVM compiles, against numpy.

use std::path::PathBuf;

use crate::{Plane, fetched};

pub(crate) fn tests() -> Vec<crate::Test> {
    Vec::new()
}

pub(crate) fn runtime() -> Option<PathBuf> {
    fetched("apache-tvm-0.27.0.post1/tvm/lib/libtvm_runtime.so")
}
