//! Element types as programs write them.

use disco::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A dtype from what programs write: `"float32"`, `"f4"`, `numpy.float32`, `torch.float32`.
pub(crate) fn dtype_of(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    let text = match given.extract::<String>() {
        Ok(text) => text,
        // A dtype of torch prints as `torch.float32`; `numpy.dtype` reads all other objects.
        Err(_) => {
            let text = given.str()?.to_string();
            match text.strip_prefix("torch.") {
                Some(name) => name.to_owned(),
                None => given.py().import("numpy")?.getattr("dtype")?.call1((given,))?.getattr("name")?.extract()?,
            }
        }
    };
    let short = |text: &str| {
        let (kind, bytes) = text.strip_prefix(['<', '=', '|']).unwrap_or(text).split_at_checked(1)?;
        let bits = bytes.parse::<u8>().ok()?.checked_mul(8)?;
        let code = match kind {
            "i" => 0,
            "u" => 1,
            "f" => 2,
            _ => return None,
        };
        DType::from_dlpack(code, bits, 1)
    };
    let long = LONG_NAMES.iter().find(|row| row.1 == text).map(|row| row.0);
    long.or_else(|| short(&text)).or_else(|| text.parse().ok()).ok_or_else(|| {
        let known = LONG_NAMES.map(|row| row.1).join(", ");
        PyTypeError::new_err(format!("{text:?} is no element type; known are {known}"))
    })
}

/// The name of an element type in numpy and torch.
pub(crate) fn long_name(dtype: DType) -> &'static str {
    LONG_NAMES.iter().find(|row| row.0 == dtype).map_or(dtype.name(), |row| row.1)
}

/// The names of numpy and torch, where they differ from Disco's.
const LONG_NAMES: [(DType, &str); 15] = [
    (DType::Bool, "bool"),
    (DType::I8, "int8"),
    (DType::U8, "uint8"),
    (DType::I16, "int16"),
    (DType::U16, "uint16"),
    (DType::I32, "int32"),
    (DType::U32, "uint32"),
    (DType::I64, "int64"),
    (DType::U64, "uint64"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::F8E4M3, "float8_e4m3fn"),
    (DType::F8E5M2, "float8_e5m2"),
];
