//! Encoding of a worker's progress.

use super::field::{Field, fields};
use super::{Packet, WireError};
use crate::activity::{OpRecord, OpState, Progress, TimeLimit};
use crate::op::OpKind;
use crate::value::Value;

fields!(Progress { received, finished, inside, limit, moved, ops });
fields!(OpRecord { number, kind, dtype, count, state });

/// Whether the limit is the function's own.
impl Field for TimeLimit {
    fn put(&self, args: &mut Vec<Value>) {
        (*self == TimeLimit::Own).put(args);
    }

    fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
        Ok(if packet.bool()? { TimeLimit::Own } else { TimeLimit::Call })
    }
}

/// The position in the list of all.
macro_rules! position {
    ($type:ty, $what:literal) => {
        impl Field for $type {
            fn put(&self, args: &mut Vec<Value>) {
                args.push(Value::Int(*self as i64));
            }

            fn take(packet: &mut Packet<'_>) -> Result<Self, WireError> {
                let number = packet.int()?;
                let known = usize::try_from(number).ok().and_then(|index| Self::ALL.get(index));
                known.copied().ok_or(WireError::Unknown { what: $what, number })
            }
        }
    };
}

position!(OpKind, "kind of operation");
position!(OpState, "state of an operation");
