//! Arguments and results of any serde type.

use std::any::type_name;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Arg, BoxError, FromArg, IntoObject, Object};
use crate::error::{Error, Result};
use crate::value::Value;

/// A value of any serde type, as an argument or a result of a worker function. It is sent as JSON text, a
/// [`Value::Str`], in sessions of every kind.
///
/// JSON is self-describing, so an error names the missing or wrong field, and all serde attributes work (`untagged`,
/// `flatten`, `default`). JSON has no NaN and no infinity: serde writes them as `null`, which does not read as a float.
/// Use a [`Tensor`](crate::Tensor) for large numbers of values.
///
/// ```
/// use disco_core::function::Json;
/// use disco_core::{DRef, Result, Session, WorkerContext};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Layer {
///     name: String,
///     units: usize,
/// }
///
/// fn widen(_: &mut WorkerContext, Json(layer): Json<Layer>) -> Result<Json<Layer>> {
///     Ok(Json(Layer { units: 2 * layer.units, ..layer }))
/// }
///
/// disco_core::register_function!("example.widen", widen);
///
/// # async fn example(session: &dyn Session) -> Result<()> {
/// let layer = Layer { name: "dense".into(), units: 64 };
/// let layers = session.call("example.widen", (Json(layer),)).await?;
/// for Json(layer) in session.get_all::<Json<Layer>>(&layers).await? {
///     assert_eq!(layer.units, 128);
/// }
/// # Ok(())
/// # }
/// ```
///
/// `examples/serde_values.rs` of the package `disco` is a whole program.
///
/// # Errors
/// An argument that does not deserialize makes the worker fail with [`Error::Argument`], which names the function, the
/// argument's position and serde's reason. A value that serde can't write, such as a map whose keys are not strings, is
/// an [`Error::Invalid`]: of the call if it is an argument, of the worker function if it is a result.
#[allow(clippy::exhaustive_structs, reason = "a wrapper and nothing else")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Json<T>(pub T);

impl<T: Serialize> Json<T> {
    /// The value as JSON text, for [`Session::set`](crate::Session::set).
    ///
    /// # Errors
    /// [`Error::Invalid`]: serde can't write the value as JSON.
    pub fn to_value(&self) -> Result<Value> {
        let refused = |error| Error::invalid(format!("a {} does not become JSON: {error}", type_name::<T>()));
        serde_json::to_string(&self.0).map(Value::from).map_err(refused)
    }
}

impl<T: DeserializeOwned> FromArg for Json<T> {
    fn expected() -> &'static str {
        type_name::<T>()
    }

    fn from_arg(arg: Arg<'_>) -> Option<Self> {
        read(arg)?.ok().map(Self)
    }

    fn found(arg: Arg<'_>) -> String {
        match read::<T>(arg) {
            Some(Err(error)) => format!("JSON that does not fit: {error}"),
            _ => arg.kind().into(),
        }
    }
}

impl<T: Serialize> IntoObject for Json<T> {
    /// None for a value that serde can't write.
    fn into_object(self) -> Object {
        Object::Value(self.to_value().unwrap_or(Value::None))
    }

    fn try_into_object(self) -> Result<Object, BoxError> {
        Ok(Object::Value(self.to_value()?))
    }
}

/// Deserializes a string argument; none for another kind of argument.
fn read<T: DeserializeOwned>(arg: Arg<'_>) -> Option<Result<T, serde_json::Error>> {
    match arg.value()? {
        Value::Str(text) => Some(serde_json::from_str(text)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_map_whose_keys_are_not_strings_is_an_error() {
        let error = Json(HashMap::from([((1, 2), 3)])).to_value().unwrap_err().to_string();
        assert_eq!(
            error,
            "a std::collections::hash::map::HashMap<(i32, i32), i32> does not become JSON: key must be a string"
        );
    }

    #[test]
    fn floats_come_back_with_all_their_bits() {
        fn back<T: Serialize + DeserializeOwned>(number: T) -> T {
            Json::<T>::from_arg(Arg::Value(&Json(number).to_value().unwrap())).unwrap().0
        }
        let mut bits = 1u64;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (double, single) = (f64::from_bits(bits), f32::from_bits((bits >> 32) as u32));
            if double.is_finite() {
                assert_eq!(back(double).to_bits(), bits, "{double}");
            }
            if single.is_finite() {
                assert_eq!(back(single).to_bits(), single.to_bits(), "{single}");
            }
        }
    }

    #[test]
    fn json_of_another_type_is_an_error_with_the_reason_of_serde() {
        let text = Value::from("[1, true]");
        assert!(Json::<Vec<u8>>::from_arg(Arg::Value(&text)).is_none());
        let found = Json::<Vec<u8>>::found(Arg::Value(&text));
        assert_eq!(found, "JSON that does not fit: invalid type: boolean `true`, expected u8 at line 1 column 8");
        assert_eq!(Json::<Vec<u8>>::found(Arg::Value(&Value::Int(1))), "an int");
    }
}
