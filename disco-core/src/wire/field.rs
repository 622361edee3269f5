//! Parts of messages: each becomes arguments of a packet, and is read from them in the same order.

use std::sync::Arc;
use std::time::Duration;

use super::value::{clip, duration};
use super::{Packet, WireError};
use crate::dtype::DType;
use crate::id::{RegisterId, WorkerId};
use crate::value::Value;
use crate::worker_range::WorkerRange;

/// A part of a message.
pub(super) trait Field: Sized {
    /// Appends the arguments.
    fn put(&self, args: &mut Vec<Value>);

    /// Takes the arguments.
    ///
    /// # Errors
    /// They are not those of this type.
    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError>;
}

/// Appends the arguments of a failure or a loss, whose texts are truncated to 64 KiB.
pub(super) fn put_clipped(field: &impl Field, args: &mut Vec<Value>) {
    let start = args.len();
    field.put(args);
    for arg in &mut args[start..] {
        if let Value::Str(text) = arg
            && clip(text).len() < text.len()
        {
            *text = clip(text).into();
        }
    }
}

/// Implements [`Field`] for a struct: its fields, in the order of this list.
macro_rules! fields {
    ($type:ident { $($field:ident),+ $(,)? }) => {
        impl Field for $type {
            fn put(&self, args: &mut Vec<Value>) {
                let Self { $($field),+ } = self;
                $($field.put(args);)+
            }

            fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
                Ok(Self { $($field: Field::take(packet)?),+ })
            }
        }
    };
}
pub(super) use fields;

/// Implements [`Field`] for an enum: the number of the variant, then its fields in the order of the list. Variants that
/// have another encoding are in the two lists at the end, which name the arguments and the packet.
macro_rules! variants {
    ($type:ident, $what:literal, {
        $($number:tt => $variant:ident $(($($item:ident),+))? $({ $($field:ident),+ })?,)+
    } $(put($args:ident) { $($pattern:pat => $put:expr,)+ } take($packet:ident) { $($other:pat => $take:expr,)+ })?) => {
        impl $type {
            /// Takes the fields of the variant with this number.
            fn take_variant(number: i64, packet: &mut Packet<'_>) -> Result<Self, WireError> {
                $(let $packet = &mut *packet;)?
                match number {
                    $($number => {
                        $($(let $item = Field::take(packet)?;)+)?
                        $($(let $field = Field::take(packet)?;)+)?
                        Ok(Self::$variant $(($($item),+))? $({ $($field),+ })?)
                    })+
                    $($($other => $take,)+)?
                    number => Err(WireError::Unknown { what: $what, number }),
                }
            }
        }

        impl Field for $type {
            fn put(&self, args: &mut Vec<Value>) {
                $(let $args = &mut *args;)?
                match self {
                    $(Self::$variant $(($($item),+))? $({ $($field),+ })? => {
                        args.push(Value::Int($number));
                        $($($item.put(args);)+)?
                        $($($field.put(args);)+)?
                    })+
                    $($($pattern => $put,)+)?
                }
            }

            fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
                let number = packet.int()?;
                Self::take_variant(number, packet)
            }
        }
    };
}
pub(super) use variants;

/// Implements [`Field`] for a type that is one argument: how it is written, and how it is read.
macro_rules! argument {
    ($($type:ty: |$value:ident| $argument:expr, |$packet:ident| $take:expr;)+) => {
        $(impl Field for $type {
            fn put(&self, args: &mut Vec<Value>) {
                let $value = self;
                args.push($argument);
            }

            fn take($packet: &mut Packet<'_>) -> Result<Self, WireError> {
                $take
            }
        })+
    };
}

argument! {
    bool: |bool| Value::Bool(*bool), |packet| packet.bool();
    i64: |number| Value::Int(*number), |packet| packet.int();
    i32: |number| Value::Int((*number).into()), |packet| small(packet.int()?);
    u64: |number| Value::Int(*number as i64), |packet| packet.number();
    u32: |number| Value::Int((*number).into()), |packet| packet.id();
    usize: |number| Value::Int(i64::try_from(*number).unwrap_or(i64::MAX)), |packet| Ok(packet.number()? as usize);
    WorkerId: |worker| Value::Int(worker.wire()), |packet| packet.id();
    RegisterId: |register| Value::Int(register.wire()), |packet| packet.id();
    Duration: |time| duration(*time), |packet| packet.duration();
    String: |text| text.as_str().into(), |packet| Ok(packet.string()?.to_string());
    Arc<str>: |text| Value::Str(text.clone()), |packet| packet.string();
    Arc<[u8]>: |bytes| Value::Bytes(bytes.clone()), |packet| packet.bytes();
    DType: |dtype| Value::DType(*dtype), |packet| match packet.value()? {
        Value::DType(dtype) => Ok(dtype),
        _ => Err(WireError::Expected("a dtype")),
    };
}

fn small(number: i64) -> Result<i32, WireError> {
    i32::try_from(number).map_err(|_| WireError::Unknown { what: "number of 32 bits", number })
}

/// The first worker, and their number.
impl Field for WorkerRange {
    fn put(&self, args: &mut Vec<Value>) {
        self.first().put(args);
        self.len().put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let (first, count): (u32, u32) = (packet.id()?, packet.id()?);
        let end = first.checked_add(count).ok_or(WireError::Expected("a range of workers"))?;
        Ok(WorkerRange::new(first..end))
    }
}

/// Whether there is a value, and the value.
impl<T: Field> Field for Option<T> {
    fn put(&self, args: &mut Vec<Value>) {
        self.is_some().put(args);
        if let Some(value) = self {
            value.put(args);
        }
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        if packet.bool()? { T::take(packet).map(Some) } else { Ok(None) }
    }
}

/// All items, up to the end of the packet.
impl<T: Field> Field for Vec<T> {
    fn put(&self, args: &mut Vec<Value>) {
        self.iter().for_each(|item| item.put(args));
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        let mut items = Vec::new();
        while packet.left() > 0 {
            items.push(T::take(packet)?);
        }
        Ok(items)
    }
}
