//! Objects of the C ABI that this crate allocates: strings, bytes, shapes, tensors, arrays, errors and functions. They
//! have the layouts of libtvm_ffi's own and need no library.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use disco_core::tensor::{DLDataType, DLDevice, DLTensor};
use disco_core::{Shape, Tensor};
use smallvec::SmallVec;

use crate::abi::{
    self, ByteArray, DELETE_STRONG, DELETE_WEAK, ErrorCell, FunctionCell, Header, SafeCall, SeqCell, ShapeCell,
    TypeIndex,
};
use crate::value::{Any, STRONG, WEAK};

/// An object: the header, the cell that the ABI defines for its type, and the owner of the memory that the cell points to.
#[repr(C)]
struct Owned<C, K> {
    header: Header,
    cell: C,
    kept: ManuallyDrop<K>,
}

/// Allocates an object. `point` sets the pointers of the cell, which may lead into `kept`.
fn allocate<C: Copy, K>(type_index: TypeIndex, cell: C, kept: K, point: impl FnOnce(&mut C, &mut K)) -> Any {
    let counts = AtomicU64::new(STRONG + WEAK);
    let header = Header { counts, type_index, padding: 0, deleter: Some(delete::<C, K>) };
    let object = Box::into_raw(Box::new(Owned { header, cell, kept: ManuallyDrop::new(kept) }));
    // SAFETY: the object was just allocated and is not shared.
    let Owned { cell, kept, .. } = unsafe { &mut *object };
    point(cell, kept);
    let raw = abi::Any::of_pointer(type_index, object);
    // SAFETY: the object was just allocated with one strong reference.
    unsafe { Any::from_raw(raw) }
}

/// The deleter of all objects of this crate.
///
/// # Safety
/// `object` was made by `allocate::<C, K>`; each flag is passed once, [`DELETE_STRONG`] first.
unsafe extern "C" fn delete<C: Copy, K>(object: *mut c_void, flags: c_int) {
    let object = object.cast::<Owned<C, K>>();
    if flags & DELETE_STRONG != 0 {
        // SAFETY: the object is not freed yet, and nothing else refers to it.
        let kept = unsafe { &mut (*object).kept };
        // SAFETY: the flag is passed once, so the content is dropped once.
        unsafe { ManuallyDrop::drop(kept) };
    }
    if flags & DELETE_WEAK != 0 {
        // SAFETY: `allocate` made the box, and the flag is passed once, after the content was dropped.
        drop(unsafe { Box::from_raw(object) });
    }
}

/// The content of an object that this crate has made with the same types.
///
/// # Safety
/// No other pair of types is allocated with `type_index`.
unsafe fn kept<C: Copy, K>(any: &Any, type_index: TypeIndex) -> Option<&K> {
    let header = any.header().filter(|header| header.type_index == type_index)?;
    let deleter = header.deleter.filter(|deleter| ptr::fn_addr_eq(*deleter, delete::<C, K> as abi::Deleter));
    // SAFETY: an object with this type and this deleter was made by `allocate::<C, K>`.
    deleter.map(|_| unsafe { &*(*ptr::from_ref(header).cast::<Owned<C, K>>()).kept })
}

fn view(bytes: &[u8]) -> ByteArray {
    ByteArray { data: bytes.as_ptr().cast::<c_char>(), size: bytes.len() }
}

/// The bytes with a zero byte behind them, which C readers of strings expect.
fn terminated(bytes: &[u8]) -> Box<[u8]> {
    [bytes, &[0]].concat().into()
}

/// A string, in place if it is short.
pub(crate) fn string(text: &str) -> Any {
    Any::small(TypeIndex::SMALL_STR, text.as_bytes()).unwrap_or_else(|| {
        let kept = terminated(text.as_bytes());
        allocate(TypeIndex::STR, view(&[]), kept, |cell, kept| *cell = view(&kept[..text.len()]))
    })
}

/// Bytes, in place if they are few; otherwise without a copy.
pub(crate) fn bytes(bytes: &Arc<[u8]>) -> Any {
    Any::small(TypeIndex::SMALL_BYTES, bytes)
        .unwrap_or_else(|| allocate(TypeIndex::BYTES, view(&[]), bytes.clone(), |cell, kept| *cell = view(kept)))
}

/// A shape, without a copy.
pub(crate) fn shape(shape: &Shape) -> Any {
    let cell = ShapeCell { data: shape.as_ptr(), size: shape.len() };
    allocate(TypeIndex::SHAPE, cell, shape.clone(), |_, _| {})
}

/// The owner that keeps the pointers of a `DLTensor` valid.
struct KeptTensor {
    tensor: Tensor,
    strides: SmallVec<[i64; 6]>,
}

/// A tensor that shares the elements.
pub(crate) fn tensor(tensor: &Tensor) -> Any {
    let (code, bits) = tensor.dtype().dlpack();
    let device = tensor.device();
    let cell = DLTensor {
        // Not the first byte of the storage: few readers add the offset.
        data: tensor.data().cast(),
        device: DLDevice { device_type: device.kind.dlpack(), device_id: device.ordinal },
        ndim: tensor.shape().len() as c_int,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: tensor.shape().as_ptr().cast_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let strides = strides(tensor);
    let kept = KeptTensor { tensor: tensor.clone(), strides };
    allocate(TypeIndex::TENSOR, cell, kept, |cell, kept| cell.strides = kept.strides.as_mut_ptr())
}

/// The strides in elements, without an allocation for few axes.
fn strides(tensor: &Tensor) -> SmallVec<[i64; 6]> {
    if !tensor.is_contiguous() {
        return tensor.strides().into();
    }
    let mut strides: SmallVec<[i64; 6]> = SmallVec::from_elem(1, tensor.shape().len());
    for axis in (1..strides.len()).rev() {
        strides[axis - 1] = strides[axis].wrapping_mul(tensor.shape()[axis].max(1));
    }
    strides
}

/// The tensor of an object that [`tensor`] has made in this crate.
pub(crate) fn as_tensor(any: &Any) -> Option<&Tensor> {
    // SAFETY: only `tensor` allocates objects of this type.
    unsafe { kept::<DLTensor, KeptTensor>(any, TypeIndex::TENSOR) }.map(|kept| &kept.tensor)
}

/// The items that an array owns: as many as its cell says, since a library may remove some.
struct KeptItems {
    items: *mut abi::Any,
    capacity: usize,
    size: *const i64,
}

impl Drop for KeptItems {
    fn drop(&mut self) {
        // SAFETY: the cell lives as long as this content, which is dropped before the object's memory is freed.
        let size = unsafe { *self.size }.clamp(0, self.capacity as i64) as usize;
        // SAFETY: `array` leaked a vector of this address and capacity, of which the first `size` items are alive.
        drop(unsafe { Vec::from_raw_parts(self.items.cast::<Any>(), size, self.capacity) });
    }
}

/// An array of values.
pub(crate) fn array(items: Vec<Any>) -> Any {
    let mut items = ManuallyDrop::new(items);
    let (data, size, capacity) = (items.as_mut_ptr().cast::<abi::Any>(), items.len(), items.capacity());
    let cell = SeqCell { data, size: size as i64, capacity: capacity as i64, data_deleter: None };
    let kept = KeptItems { items: data, capacity, size: ptr::null() };
    allocate(TypeIndex::ARRAY, cell, kept, |cell, kept| kept.size = &raw const cell.size)
}

/// An error with a kind and a text. It has no backtrace and takes none.
pub(crate) fn error(kind: &str, message: &str) -> Any {
    unsafe extern "C" fn keep_none(_: *mut c_void, _: *const ByteArray, _: c_int) {}
    let (none, kept) = (view(&[]), (terminated(kind.as_bytes()), terminated(message.as_bytes())));
    let (cause, extra) = (ptr::null_mut(), ptr::null_mut());
    let cell = ErrorCell { kind: none, message: none, backtrace: none, update_backtrace: keep_none, cause, extra };
    allocate(TypeIndex::ERROR, cell, kept, |cell, (kind_kept, message_kept)| {
        cell.kind = view(&kind_kept[..kind.len()]);
        cell.message = view(&message_kept[..message.len()]);
    })
}

/// A function object: `safe_call` gets the object as its first argument, and finds `kept` with [`of_function`].
pub(crate) fn function<K>(safe_call: SafeCall, kept: K) -> Any {
    let cell = FunctionCell { safe_call, cpp_call: ptr::null_mut() };
    allocate(TypeIndex::FUNCTION, cell, kept, |_, _| {})
}

/// The state of a function object of this crate.
///
/// # Safety
/// `object` was made by [`function`] with a `K`, and is alive for `'a`.
pub(crate) unsafe fn of_function<'a, K>(object: *mut c_void) -> &'a K {
    // SAFETY: by contract the object was made by `allocate::<FunctionCell, K>`.
    unsafe { &(*object.cast::<Owned<FunctionCell, K>>()).kept }
}

/// The state of a function object, if [`function`] has made it in this crate with a `K`.
///
/// # Safety
/// No function object with another type of content has the same deleter: `K` is private to one module.
pub(crate) unsafe fn as_function<K>(any: &Any) -> Option<&K> {
    // SAFETY: passed on.
    unsafe { kept::<FunctionCell, K>(any, TypeIndex::FUNCTION) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disco_core::DType;

    fn strong(any: &Any) -> u64 {
        any.header().unwrap().counts.load(std::sync::atomic::Ordering::Relaxed) & (WEAK - 1)
    }

    #[test]
    fn a_tensor_object_keeps_the_storage_until_its_last_reference() {
        let elements = Tensor::zeros(DType::F32, [2, 3]).unwrap();
        let any = tensor(&elements);
        let other = any.clone();
        assert_eq!((strong(&any), Arc::strong_count(elements.storage())), (2, 1));
        // SAFETY: a tensor object has a `DLTensor`.
        let dl = unsafe { any.cell::<DLTensor>(TypeIndex::TENSOR) }.unwrap();
        assert_eq!((dl.ndim, dl.data.cast()), (2, elements.data()));
        // SAFETY: there are two strides.
        assert_eq!(unsafe { *dl.strides }, 3);
        assert_eq!(as_tensor(&other).unwrap().data(), elements.data());
        drop(elements);
        drop(any);
        assert_eq!(as_tensor(&other).unwrap().elements(), 6);
    }

    #[test]
    fn an_array_drops_the_items_that_a_library_has_left() {
        let item = shape(&Shape::from([1, 2]));
        let any = array(vec![item.clone(), item.clone()]);
        assert_eq!(strong(&item), 3);
        // SAFETY: an array object has a sequence cell.
        let cell = unsafe { any.cell::<SeqCell>(TypeIndex::ARRAY) }.unwrap();
        // As `pop_back` of a library does.
        // SAFETY: there are two items.
        let last = unsafe { cell.data.wrapping_add(1).read() };
        // SAFETY: the item is taken out of the array below.
        drop(unsafe { Any::from_raw(last) });
        // SAFETY: the cell is not shared with another thread.
        unsafe { (*ptr::from_ref(cell).cast_mut()).size = 1 };
        drop(any);
        assert_eq!(strong(&item), 1);
    }

    #[test]
    fn a_weak_reference_keeps_the_memory_but_not_the_content() {
        let bytes_kept: Arc<[u8]> = [7; 20].into();
        let any = bytes(&bytes_kept);
        let header = any.header().unwrap();
        header.counts.fetch_add(WEAK, std::sync::atomic::Ordering::Relaxed);
        let (object, deleter) = (ptr::from_ref(header).cast_mut(), header.deleter.unwrap());
        drop(any);
        assert_eq!(Arc::strong_count(&bytes_kept), 1);
        // SAFETY: the weak reference of the test keeps the memory.
        assert_eq!(unsafe { (*object).counts.load(std::sync::atomic::Ordering::Relaxed) }, WEAK);
        // SAFETY: that was the last reference.
        unsafe { deleter(object.cast(), DELETE_WEAK) };
    }

    #[test]
    fn objects_of_other_makers_are_not_taken_for_own_ones() {
        let any = shape(&Shape::from([1]));
        assert!(as_tensor(&any).is_none());
        assert!(as_tensor(&Any::NONE).is_none());
    }
}
