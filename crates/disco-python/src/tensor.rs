//! Tensors: elements on a device, which arrays of any library with DLPack share.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use disco::tensor::Storage;
use disco::{DType, Device, Shape};
use disco_core::tensor::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::dtype::{dtype_of, long_name};
use crate::errors;
use crate::shapes::shape_of;

/// The names of capsules.
pub(crate) const UNVERSIONED: &CStr = c"dltensor";
pub(crate) const VERSIONED: &CStr = c"dltensor_versioned";

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
pub(crate) unsafe fn taken(capsule: *mut ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: by contract.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the capsule is valid and has this name.
    unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }
}
