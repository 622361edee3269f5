//! Arrays of other libraries, as tensors that share their elements.

#![allow(unsafe_code)]

use disco::tensor::Storage;
use disco::{DType, Device, DeviceKind};
use disco_core::tensor::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple, PyType};

use crate::dtype::long_name;
use crate::errors;
use crate::tensor::{Tensor, UNVERSIONED, VERSIONED, taken};

/// An array of another library, as a tensor that shares its elements.
pub(crate) struct Imported {
    pub(crate) tensor: disco::Tensor,
    pub(crate) is_read_only: bool,
    /// Whether elements are complex: then the tensor has another last axis, of the real and the imaginary part.
    pub(crate) is_complex: bool,
}

/// A contiguous tensor with the elements of `array`, which are copied only if they lie otherwise. A copy has this machine's
/// byte order unless `keeps_order` is true.
///
/// # Errors
/// The elements are not in host memory and not contiguous.
pub(crate) fn contiguous(array: &Bound<'_, PyAny>, stream: Option<i64>, keeps_order: bool) -> PyResult<Imported> {
    let py = array.py();
    let ordered = |array: &Bound<'_, PyAny>| -> PyResult<Imported> {
        // The library's own copy.
        let copy = match library_of(array) {
            Some("numpy") => {
                let mut dtype = array.getattr("dtype")?;
                if !keeps_order {
                    dtype = dtype.call_method1("newbyteorder", ("=",))?;
                }
                // A copy also of elements that are read-only, which numpy before 2.1 does not lend.
                array.call_method1("astype", (dtype, "C"))?
            }
            Some("cupy") => py.import("cupy")?.getattr("ascontiguousarray")?.call1((array,))?,
            Some("torch") => array.call_method0("contiguous")?,
            _ => return Err(PyBufferError::new_err("the array is not contiguous; pass a contiguous copy")),
        };
        import(&copy, stream)
    };
    match import(array, stream) {
        Ok(imported) if imported.tensor.is_contiguous() => Ok(imported),
        Ok(_) => ordered(array),
        Err(error) if error.is_instance_of::<PyBufferError>(py) => match ordered(array) {
            Ok(imported) if imported.tensor.is_contiguous() => Ok(imported),
            // The first error says why the elements can't be lent at all.
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// The stream argument of DLPack for a device whose worker has this stream.
pub(crate) fn stream_argument(device: Device, raw: usize) -> Option<i64> {
    match device.kind {
        DeviceKind::Cpu => None,
        // The legacy default stream is 1.
        _ if raw == 0 => Some(1),
        _ => i64::try_from(raw).ok(),
    }
}

/// The tensor of an object with DLPack. Its elements stay in place; `stream` is the stream that will use them.
///
/// # Errors
/// The object has no DLPack, or a mask, or its elements can't be lent: `BufferError` of its library.
pub(crate) fn import(array: &Bound<'_, PyAny>, stream: Option<i64>) -> PyResult<Imported> {
    let py = array.py();
    if let Ok(tensor) = array.cast::<Tensor>() {
        return Ok(Imported { tensor: tensor.get().0.clone(), is_read_only: false, is_complex: false });
    }
    if is_masked(array) {
        return Err(PyTypeError::new_err(
            "a masked array is refused, because its mask would be ignored: pass `x.filled(value)`",
        ));
    }
    let method = array.getattr(intern!(py, "__dlpack__")).map_err(|_| {
        let name = array.get_type().qualname().map_or_else(|_| "the object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("{name} is no array: it has no `__dlpack__`"))
    })?;
    let named = |is_versioned: bool| -> PyResult<Bound<'_, PyDict>> {
        let named = PyDict::new(py);
        if is_versioned {
            named.set_item(intern!(py, "max_version"), (1, 0))?;
        }
        if let Some(stream) = stream {
            named.set_item(intern!(py, "stream"), stream)?;
        }
        Ok(named)
    };
    let mut lent = method.call(PyTuple::empty(py), Some(&named(true)?));
    if lent.as_ref().is_err_and(|error| error.is_instance_of::<PyTypeError>(py)) {
        // Libraries from before the versions of DLPack.
        lent = method.call(PyTuple::empty(py), Some(&named(false)?));
    }
    let capsule = match lent {
        // Numpy does not lend elements of `ml_dtypes`, but unsigned ones of the same size.
        Err(error) if error.is_instance_of::<PyBufferError>(py) => match (library_of(array), extension_of(array)) {
            (Some("numpy"), Some(dtype)) => {
                let unsigned = array.call_method1("view", (format!("u{}", dtype.size()),))?;
                let Imported { tensor, is_read_only, is_complex } = import(&unsigned, stream)?;
                if !tensor.is_contiguous() {
                    return Err(error);
                }
                let owner = Box::new(tensor.clone());
                // SAFETY: `owner` keeps the elements.
                let storage = unsafe { Storage::from_raw(tensor.data(), tensor.byte_len(), Device::CPU, owner) };
                let tensor = disco::Tensor::from_storage(storage, dtype, tensor.shape().clone());
                let tensor = tensor.map_err(|error| errors::raised(py, &error))?;
                return Ok(Imported { tensor, is_read_only, is_complex });
            }
            _ => return Err(error),
        },
        capsule => capsule?,
    };
    let capsule = capsule.cast_into::<PyCapsule>().map_err(PyErr::from)?;
    // The capsule stays as it is and owns the tensor, so that the interpreter frees it when it has the lock: the library's own
    // function would wait for the lock, on whatever thread drops the tensor.
    // SAFETY: the object is a capsule.
    let unversioned = unsafe { taken(capsule.as_ptr(), UNVERSIONED) }.cast::<DLManagedTensor>();
    // SAFETY: a capsule of this name has a valid tensor.
    let (tensor, is_read_only): (&DLTensor, bool) = match unsafe { unversioned.as_ref() } {
        Some(managed) => (&managed.dl_tensor, false),
        None => {
            // SAFETY: the object is a capsule.
            let versioned = unsafe { taken(capsule.as_ptr(), VERSIONED) }.cast::<DLManagedTensorVersioned>();
            // SAFETY: a capsule of this name has a valid tensor of the versions from 1.0 on.
            let managed = unsafe { versioned.as_ref() };
            let managed = managed.filter(|managed| managed.version.major == DLManagedTensorVersioned::VERSION.major);
            let managed = managed.ok_or_else(|| PyBufferError::new_err("the capsule is no tensor of DLPack 1"))?;
            (&managed.dl_tensor, managed.flags & DLManagedTensorVersioned::READ_ONLY != 0)
        }
    };
    if tensor.ndim > 0 && !tensor.strides.is_null() && needs_copy(tensor) {
        return Err(PyBufferError::new_err("the array is not contiguous: it has negative strides, or strides of 0"));
    }
    let mut axes = (Vec::new(), Vec::new());
    let parts = parts_of_complex(tensor, &mut axes);
    let owner = Box::new(Keeps { _capsule: capsule.into_any().unbind() });
    // SAFETY: the tensor is valid as long as its capsule, which `owner` keeps; the parts are its elements, too.
    let imported = unsafe { disco::Tensor::from_dl_tensor(parts.as_ref().unwrap_or(tensor), owner) };
    let imported = imported.map_err(|error| PyBufferError::new_err(error.to_string()))?;
    Ok(Imported { tensor: imported, is_read_only, is_complex: parts.is_some() })
}

/// The real and imaginary parts of a tensor of complex numbers, along a new last axis. `axes` holds the extents and the strides.
fn parts_of_complex(tensor: &DLTensor, (shape, strides): &mut (Vec<i64>, Vec<i64>)) -> Option<DLTensor> {
    const FLOAT: u8 = 2;
    const COMPLEX: u8 = 5;
    if tensor.dtype.code != COMPLEX {
        return None;
    }
    let axes = usize::try_from(tensor.ndim).unwrap_or(0);
    if axes > 0 {
        // SAFETY: a valid tensor has so many extents.
        shape.extend(unsafe { std::slice::from_raw_parts(tensor.shape, axes) });
    }
    shape.push(2);
    let mut own_strides = std::ptr::null_mut();
    if !tensor.strides.is_null() {
        // SAFETY: and as many strides, if it has any.
        strides.extend(unsafe { std::slice::from_raw_parts(tensor.strides, axes) }.iter().map(|stride| stride * 2));
        strides.push(1);
        own_strides = strides.as_mut_ptr();
    }
    let dtype = DLDataType { code: FLOAT, bits: tensor.dtype.bits / 2, lanes: tensor.dtype.lanes };
    Some(DLTensor { dtype, ndim: tensor.ndim + 1, shape: shape.as_mut_ptr(), strides: own_strides, ..*tensor })
}

/// The element type of an array whose elements are those of `ml_dtypes`.
fn extension_of(array: &Bound<'_, PyAny>) -> Option<DType> {
    let name: String = array.getattr("dtype").ok()?.getattr("name").ok()?.extract().ok()?;
    let extensions = [DType::BF16, DType::F8E4M3, DType::F8E5M2];
    extensions.into_iter().find(|dtype| long_name(*dtype) == name)
}

/// Whether elements lie in an order that a tensor can't have: backwards, or one for several.
fn needs_copy(tensor: &DLTensor) -> bool {
    let axes = usize::try_from(tensor.ndim).unwrap_or(0);
    // SAFETY: a valid tensor has so many extents.
    let shape = unsafe { std::slice::from_raw_parts(tensor.shape, axes) };
    // SAFETY: and as many strides, if it has any.
    let strides = unsafe { std::slice::from_raw_parts(tensor.strides, axes) };
    !shape.contains(&0) && shape.iter().zip(strides).any(|(&extent, &stride)| extent > 1 && stride <= 0)
}

/// Keeps a capsule, and with it the array.
struct Keeps {
    _capsule: Py<PyAny>,
}

/// The name of the library of an array, whose class may be derived from the library's, as `numpy.memmap` and
/// `torch.nn.Parameter` are.
pub(crate) fn library_of(array: &Bound<'_, PyAny>) -> Option<&'static str> {
    plain_library_of(array).or_else(|| classes_of(array).find_map(|class| library_of_class(&class)))
}

/// As [`library_of`], only for arrays of the library's own class: they are no more than their elements.
pub(crate) fn plain_library_of(array: &Bound<'_, PyAny>) -> Option<&'static str> {
    library_of_class(&array.get_type())
}

fn library_of_class(class: &Bound<'_, PyType>) -> Option<&'static str> {
    let module = class.module().ok()?;
    let module = module.to_str().ok()?;
    let name = class.name().ok()?;
    match (module.split('.').next()?, name.to_str().ok()?) {
        ("numpy", "ndarray") => Some("numpy"),
        ("torch", "Tensor") => Some("torch"),
        ("cupy", "ndarray") => Some("cupy"),
        ("jaxlib" | "jax", _) if class.hasattr("__dlpack__").unwrap_or(false) => Some("jax"),
        ("disco", "Tensor") => Some("disco"),
        _ => None,
    }
}

/// The classes of an object, from its own to the most general one.
fn classes_of<'py>(object: &Bound<'py, PyAny>) -> impl Iterator<Item = Bound<'py, PyType>> {
    object.get_type().mro().into_iter().filter_map(|class| class.cast_into().ok())
}

/// Whether some elements of an array of numpy do not count.
fn is_masked(array: &Bound<'_, PyAny>) -> bool {
    let is_masked = |class: Bound<'_, PyType>| {
        let of_numpy = class.module().is_ok_and(|module| module.to_string().starts_with("numpy."));
        of_numpy && class.name().is_ok_and(|name| name == "MaskedArray")
    };
    plain_library_of(array).is_none() && classes_of(array).any(is_masked)
}
