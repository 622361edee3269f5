//! Tensors: arrays of any library with DLPack, without a copy.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use disco::tensor::Storage;
use disco::{DType, Device, DeviceKind, Shape};
use disco_core::tensor::{DLDataType, DLManagedTensor, DLManagedTensorVersioned, DLTensor};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple, PyType};

use crate::errors;

const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// Elements on a device, for libraries with DLPack: `numpy.from_dlpack(tensor)` shares them. The functions of numpy take a tensor
/// in host memory as an array.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Tensor(pub(crate) disco::Tensor);

#[pymethods]
impl Tensor {
    /// Extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.dims())
    }

    /// Element type: `float32`, `bfloat16`.
    #[getter]
    fn dtype(&self) -> &'static str {
        long_name(self.0.dtype())
    }

    /// `cpu`, `cuda:0`.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.byte_len()
    }

    /// The elements as an array of numpy, which shares them.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        to_library(slf, "numpy")
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = PyDict::new(slf.py());
        named.set_item("dtype", dtype)?;
        named.set_item("copy", copy)?;
        slf.py().import("numpy")?.getattr("array")?.call((to_library(slf, "numpy")?,), Some(&named))
    }

    /// `(device type, ordinal)` of DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        let device = self.0.device();
        (device.kind.dlpack(), device.ordinal)
    }

    /// A capsule of DLPack, versioned if `max_version` permits it. Elements of a device are complete for its stream only
    /// after the worker's stream has got to them.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        _ = stream;
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "a tensor of disco is not copied by DLPack; copy the array that shares it",
            ));
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(format!("the tensor is on {}, not on another device", self.0.device())));
        }
        let (pointer, name, free): (*mut c_void, _, unsafe extern "C" fn(*mut ffi::PyObject)) = match max_version {
            Some((1.., _)) => (self.0.to_dlpack_versioned().cast(), VERSIONED, free_versioned),
            _ => (self.0.to_dlpack().cast(), UNVERSIONED, free_unversioned),
        };
        // SAFETY: the capsule owns the exported tensor until a consumer renames it.
        let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(free)) };
        // SAFETY: the call has returned a new reference, or null.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }

    /// With protocol 5 the elements lie beside the pickle.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: u32) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let (module, name) = if protocol >= 5 { ("pickle", "PickleBuffer") } else { ("builtins", "bytes") };
        let elements = py.import(module)?.getattr(name)?.call1((Elements(slf.get().0.clone()),))?;
        let restored = py.get_type::<Self>().getattr("_restored")?;
        let shape = slf.get().shape(py)?;
        (restored, (elements, slf.get().dtype(), shape)).into_pyobject(py)
    }

    /// The tensor of a pickle.
    #[staticmethod]
    fn _restored(elements: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>, shape: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = elements.py().import("builtins")?.getattr("memoryview")?.call1((elements,))?;
        let tensor = of_buffer(&view, dtype_of(dtype)?, shape_of(shape)?)?;
        // Bytes do not change.
        Ok(Self(if view.getattr("readonly")?.is_truthy()? { copied(elements.py(), &tensor)? } else { tensor }))
    }

    fn __repr__(&self) -> String {
        let shape = self.0.dims();
        format!("<disco.Tensor {} {shape:?} on {}>", self.dtype(), self.0.device())
    }
}

/// The bytes of a host tensor, for pickles and for numpy. A tensor itself has no buffer: libraries would take it for an array of
/// bytes.
#[pyclass(frozen, module = "disco._disco")]
pub(crate) struct Elements(pub(crate) disco::Tensor);

#[pymethods]
impl Elements {
    /// # Safety
    /// Python calls it with a valid pointer.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = &slf.get().0;
        if !tensor.device().is_host() || !tensor.is_contiguous() {
            return Err(PyBufferError::new_err("only contiguous tensors in host memory have a buffer"));
        }
        let (pointer, bytes) = (tensor.data(), tensor.byte_len());
        // SAFETY: the memory lives as long as the tensor, to which the call keeps a reference in `view`.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), pointer.cast(), bytes as isize, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// The memory of a memoryview as a tensor, in place.
pub(crate) fn of_buffer(view: &Bound<'_, PyAny>, dtype: DType, shape: Shape) -> PyResult<disco::Tensor> {
    let py = view.py();
    let mut buffer = ffi::Py_buffer::new();
    // SAFETY: `buffer` is written by the call, and released below.
    if unsafe { ffi::PyObject_GetBuffer(view.as_ptr(), &raw mut buffer, ffi::PyBUF_SIMPLE) } != 0 {
        return Err(PyErr::fetch(py));
    }
    let (pointer, bytes) = (buffer.buf.cast::<u8>(), usize::try_from(buffer.len).unwrap_or(0));
    // SAFETY: it was filled above. The view itself holds its object's memory until it is freed.
    unsafe { ffi::PyBuffer_Release(&raw mut buffer) };
    let owner = Box::new(view.clone().unbind());
    // SAFETY: `owner` keeps the memory of the view.
    let storage = unsafe { Storage::from_raw(pointer, bytes, Device::CPU, owner) };
    disco::Tensor::from_storage(storage, dtype, shape).map_err(|error| errors::raised(py, &error))
}

/// A copy of a host tensor.
pub(crate) fn copied(py: Python<'_>, tensor: &disco::Tensor) -> PyResult<disco::Tensor> {
    let copied = || {
        let copy = disco::Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
        copy.copy_from(tensor).map(|()| copy)
    };
    copied().map_err(|error| errors::raised(py, &error))
}

/// Frees the tensor of a capsule that no consumer has taken.
unsafe extern "C" fn free_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls the destructor with its capsule.
    let managed = unsafe { taken(capsule, UNVERSIONED) }.cast::<DLManagedTensor>();
    // SAFETY: a capsule of this name has the tensor that `__dlpack__` has exported, and nobody else frees it.
    if let Some(free) = unsafe { managed.as_ref() }.and_then(|managed| managed.deleter) {
        // SAFETY: as above.
        unsafe { free(managed) }
    }
}

/// As [`free_unversioned`].
unsafe extern "C" fn free_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls the destructor with its capsule.
    let managed = unsafe { taken(capsule, VERSIONED) }.cast::<DLManagedTensorVersioned>();
    // SAFETY: a capsule of this name has the tensor that `__dlpack__` has exported, and nobody else frees it.
    if let Some(free) = unsafe { managed.as_ref() }.and_then(|managed| managed.deleter) {
        // SAFETY: as above.
        unsafe { free(managed) }
    }
}

/// The pointer of a capsule, or null if it has another name.
///
/// # Safety
/// `capsule` is a capsule.
unsafe fn taken(capsule: *mut ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: by contract.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the capsule is valid and has this name.
    unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }
}

/// An array of another library, as a tensor that shares its elements.
pub(crate) struct Imported {
    pub(crate) tensor: disco::Tensor,
    pub(crate) is_read_only: bool,
    /// Whether elements are complex: then the tensor has another last axis, of the real and the imaginary part.
    pub(crate) is_complex: bool,
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

/// The complex numbers whose parts are the last axis of an array, which shares them if its library can.
pub(crate) fn to_complex<'py>(parts: &Bound<'py, PyAny>, library: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = parts.py();
    match library {
        "torch" => py.import("torch")?.getattr("view_as_complex")?.call1((parts,)),
        "jax" => {
            let part = |index: usize| parts.get_item((py.Ellipsis(), index));
            py.import("jax.lax")?.getattr("complex")?.call1((part(0)?, part(1)?))
        }
        _ => {
            let shape: Vec<usize> = parts.getattr("shape")?.extract()?;
            let bytes: usize = parts.getattr("itemsize")?.extract()?;
            let complex = parts.call_method1("view", (format!("c{}", bytes * 2),))?;
            complex.call_method1("reshape", (PyTuple::new(py, shape.split_last().map_or(&[][..], |(_, rest)| rest))?,))
        }
    }
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

/// A tensor as an array of a library, which shares the elements.
pub(crate) fn to_library<'py>(tensor: &Bound<'py, Tensor>, library: &str) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    match library {
        "disco" => Ok(tensor.clone().into_any()),
        "numpy" if tensor.get().0.device().is_host() && tensor.get().0.is_contiguous() => to_numpy(tensor),
        "jax" => py.import("jax.dlpack")?.getattr("from_dlpack")?.call1((tensor,)),
        "numpy" | "torch" | "cupy" => py.import(library)?.getattr("from_dlpack")?.call1((tensor,)),
        other => Err(PyValueError::new_err(format!(
            "{other:?} is no library of arrays; known are numpy, torch, jax, cupy, disco"
        ))),
    }
}

/// A host tensor as an array of numpy that shares the elements and can be written to, whatever its version knows of DLPack.
fn to_numpy<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = tensor.py().import("numpy")?;
    let elements = Elements(tensor.get().0.clone());
    let (shape, dtype) = (PyTuple::new(tensor.py(), tensor.get().0.dims())?, long_name(tensor.get().0.dtype()));
    if matches!(tensor.get().0.dtype(), DType::BF16 | DType::F8E4M3 | DType::F8E5M2) {
        // It tells numpy of these elements.
        tensor.py().import("ml_dtypes").map_err(|_| {
            PyTypeError::new_err(format!(
                "numpy has elements of type {dtype} with the package `ml_dtypes` only, which is not installed"
            ))
        })?;
    }
    if tensor.get().0.elements() == 0 {
        return numpy.getattr("empty")?.call1((shape, dtype));
    }
    numpy.getattr("frombuffer")?.call1((elements, dtype))?.call_method1("reshape", (shape,))
}

/// As [`to_library`], of a tensor that is no object yet.
pub(crate) fn as_array<'py>(py: Python<'py>, tensor: disco::Tensor, library: &str) -> PyResult<Bound<'py, PyAny>> {
    to_library(&Bound::new(py, Tensor(tensor))?, library)
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

fn long_name(dtype: DType) -> &'static str {
    LONG_NAMES.iter().find(|row| row.0 == dtype).map_or(dtype.name(), |row| row.1)
}

/// A dtype from what programs write: `"float32"`, `"f4"`, `numpy.float32`, `torch.float32`.
pub(crate) fn dtype_of(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    let text = match given.extract::<String>() {
        Ok(text) => text,
        // `torch.float32` prints as that, and `numpy.dtype` knows what is left.
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

/// A shape: an int, or a sequence of ints.
pub(crate) fn shape_of(given: &Bound<'_, PyAny>) -> PyResult<Shape> {
    match given.extract::<i64>() {
        Ok(extent) => Ok(Shape::from(&[extent][..])),
        Err(_) => Ok(Shape::from(&given.extract::<Vec<i64>>()?[..])),
    }
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
