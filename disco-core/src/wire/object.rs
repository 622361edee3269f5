//! Objects in arguments. A program can register types of its own.

use super::{Reader, WireError, Writer};
use crate::shape::Shape;
use crate::value::{Value, WireObject};

/// Type indices of objects.
pub(super) mod index {
    pub(in crate::wire) const STR: i32 = 65;
    pub(in crate::wire) const BYTES: i32 = 66;
    pub(in crate::wire) const SHAPE: i32 = 69;
    pub(in crate::wire) const ARRAY: i32 = 71;
    pub(in crate::wire) const MAP: i32 = 72;
    pub(in crate::wire) const REGISTER: i32 = 114;
    pub(in crate::wire) const TENSOR: i32 = 4096;
    pub(in crate::wire) const TENSOR_BESIDE: i32 = 4097;
    pub(in crate::wire) const TAGGED: i32 = 4098;
}

/// How objects of one type are decoded. [`register_object!`](crate::register_object) registers an entry.
#[allow(clippy::exhaustive_structs, reason = "`register_object!` writes one in the crate of the object")]
#[derive(Clone, Copy, Debug)]
pub struct ObjectEntry {
    /// The type index, as [`WireObject::type_index`] returns it; 8192 or more for types of a program.
    pub index: i32,
    /// Decodes the content that [`WireObject::write`] wrote.
    pub read: fn(&mut Reader<'_>) -> Result<Value, WireError>,
}

inventory::collect!(ObjectEntry);

/// Registers a type of objects that can be arguments, with its type index and the function that decodes an object.
///
/// ```
/// use std::sync::Arc;
/// use disco_core::wire::{Reader, WireError, Writer};
/// use disco_core::{Value, WireObject};
///
/// #[derive(Debug)]
/// struct Point(f64, f64);
///
/// impl WireObject for Point {
///     fn type_index(&self) -> i32 {
///         9000
///     }
///     fn size(&self) -> usize {
///         16
///     }
///     fn write(&self, to: &mut Writer) {
///         to.f64(self.0);
///         to.f64(self.1);
///     }
/// }
///
/// fn read(from: &mut Reader<'_>) -> Result<Value, WireError> {
///     Ok(Value::Object(Arc::new(Point(from.f64()?, from.f64()?))))
/// }
///
/// disco_core::register_object!(9000, read);
/// ```
#[macro_export]
macro_rules! register_object {
    ($index:expr, $read:path) => {
        $crate::inventory::submit! { $crate::wire::ObjectEntry { index: $index, read: $read } }
    };
}

/// Decodes the content of an object of a registered type.
pub(super) fn read(index: i32, from: &mut Reader<'_>) -> Result<Value, WireError> {
    let entry = inventory::iter::<ObjectEntry>.into_iter().find(|entry| entry.index == index);
    let entry = entry.ok_or(WireError::Unknown { what: "argument type", number: index.into() })?;
    (entry.read)(from)
}

register_object!(index::SHAPE, read_shape);

impl WireObject for Shape {
    fn type_index(&self) -> i32 {
        index::SHAPE
    }

    fn size(&self) -> usize {
        8 + 8 * self.len()
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.len() as u64);
        self.iter().for_each(|dim| to.i64(*dim));
    }
}

fn read_shape(from: &mut Reader<'_>) -> Result<Value, WireError> {
    let axes = from.u64()?;
    Ok(Value::Shape(from.list(axes)?.into()))
}
