//! Slices of host tensors, protected by the storage's borrow flag.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::{ptr, slice};

use super::Tensor;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Elements of a host tensor, for reading. No writer is admitted while the view exists.
#[derive(Debug)]
pub struct View<'a, T> {
    pub(super) tensor: &'a Tensor,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a host tensor, for writing. No other reader or writer is admitted while the view exists.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(super) tensor: &'a Tensor,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> View<'a, T> {
    /// The caller has checked device and strides, and the size of `T` divides the tensor's bytes.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        require_aligned::<T>(tensor)?;
        tensor.0.storage.claim(false)?;
        Ok(Self { tensor, elements: PhantomData })
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// As [`View::new`].
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        require_aligned::<T>(tensor)?;
        tensor.0.storage.claim(true)?;
        Ok(Self { tensor, elements: PhantomData })
    }
}

impl ViewMut<'_, u8> {
    /// Overwrites the elements with those of another contiguous host tensor of this size, which does not overlap this
    /// one.
    pub(super) fn copy_from(&mut self, source: &Tensor) -> Result<()> {
        // This view is the claim of a storage that both tensors share.
        let _view = if Arc::ptr_eq(source.storage(), self.tensor.storage()) { None } else { Some(source.bytes()?) };
        // SAFETY: the caller guarantees that both ranges are host memory of this size and do not overlap; the borrow flags
        // exclude other readers of this tensor and writers of both.
        unsafe { ptr::copy_nonoverlapping(source.data(), self.tensor.data(), self.tensor.byte_len()) };
        Ok(())
    }
}

/// Checks the alignment of the elements: imported memory may be unaligned, but slices may not.
fn require_aligned<T>(tensor: &Tensor) -> Result<()> {
    if tensor.data().cast::<T>().is_aligned() {
        Ok(())
    } else {
        Err(Error::invalid(format!("{tensor} is not aligned to {} bytes", align_of::<T>())))
    }
}

/// Length of the slice: the bytes of the tensor in units of `T`.
fn len<T>(tensor: &Tensor) -> usize {
    tensor.byte_len() / size_of::<T>()
}

impl<T: Element> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if len::<T>(self.tensor) == 0 {
            return &[];
        }
        // SAFETY: the bytes lie inside the host storage (checked when the tensor was made) and are aligned and
        // initialised; all bit patterns are valid for `T` (Pod); the borrow flag excludes writers while `self` exists.
        unsafe { slice::from_raw_parts(self.tensor.data().cast(), len::<T>(self.tensor)) }
    }
}

impl<T: Element> Deref for ViewMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if len::<T>(self.tensor) == 0 {
            return &[];
        }
        // SAFETY: as for `View`.
        unsafe { slice::from_raw_parts(self.tensor.data().cast(), len::<T>(self.tensor)) }
    }
}

impl<T: Element> DerefMut for ViewMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if len::<T>(self.tensor) == 0 {
            return &mut [];
        }
        // SAFETY: as for `View`; the flag excludes readers and other writers.
        unsafe { slice::from_raw_parts_mut(self.tensor.data().cast(), len::<T>(self.tensor)) }
    }
}

impl<T> Drop for View<'_, T> {
    fn drop(&mut self) {
        self.tensor.0.storage.release(false);
    }
}

impl<T> Drop for ViewMut<'_, T> {
    fn drop(&mut self) {
        self.tensor.0.storage.release(true);
    }
}
