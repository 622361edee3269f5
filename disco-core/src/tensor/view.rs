//! Slices of host tensors, guarded by the storage's borrow flag.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice;

use super::Tensor;
use crate::dtype::Element;
use crate::error::{Error, Result};

/// Elements of a host tensor, to read. Excludes writers while it lives.
#[derive(Debug)]
pub struct View<'a, T> {
    pub(super) tensor: &'a Tensor,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a host tensor, to write. Excludes everybody else while it lives.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(super) tensor: &'a Tensor,
    elements: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> View<'a, T> {
    /// The caller has checked device and strides; `T` divides the tensor's bytes.
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

/// Imported memory may lie anywhere; slices may not.
fn require_aligned<T>(tensor: &Tensor) -> Result<()> {
    match tensor.data().cast::<T>().is_aligned() {
        true => Ok(()),
        false => Err(Error::invalid(format!("{tensor} is not aligned to {} bytes", align_of::<T>()))),
    }
}

/// Bytes of the tensor in units of `T`: its elements, or its bytes.
fn len<T>(tensor: &Tensor) -> usize {
    tensor.byte_len() / size_of::<T>()
}

impl<T: Element> Deref for View<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if len::<T>(self.tensor) == 0 {
            return &[];
        }
        // SAFETY: the bytes lie inside the host storage (checked when the tensor was made), aligned and initialised;
        // any bits are a `T` (Pod); the borrow flag keeps writers out while `self` lives.
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
        // SAFETY: as for `View`; the flag keeps readers and other writers out too.
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
