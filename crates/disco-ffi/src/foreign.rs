//! Objects of libraries in registers of a worker.

use std::any::Any as StdAny;
use std::fmt;
use std::sync::Arc;

use crate::abi::TypeIndex;
use crate::value::Any;

/// An owner that keeps the code of a library in the process: objects that the library has made need it for their deleters.
pub(crate) type Keep = Option<Arc<dyn StdAny + Send + Sync>>;

/// A value of a library that has no form in Disco: a module, an object of the library's own type, or a pointer. Worker
/// functions take it as `Rc<ForeignObject>`, and functions of libraries take it as it is.
#[derive(Clone)]
pub struct ForeignObject {
    // Dropped before the library that has the deleter.
    any: Any,
    keep: Keep,
}

impl ForeignObject {
    pub(crate) fn new(any: Any, keep: Keep) -> Self {
        Self { any, keep }
    }

    /// The value.
    pub fn any(&self) -> &Any {
        &self.any
    }

    /// Whether the value is a module of libtvm_ffi.
    pub fn is_module(&self) -> bool {
        self.any.type_index() == TypeIndex::MODULE
    }

    /// The same value with something else that is kept.
    pub(crate) fn kept_by(&self, keep: Keep) -> Self {
        Self::new(self.any.clone(), keep)
    }

    pub(crate) fn keep(&self) -> &Keep {
        &self.keep
    }
}

impl fmt::Debug for ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.any.fmt(f)
    }
}
