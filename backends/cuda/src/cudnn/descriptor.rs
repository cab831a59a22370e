//! Descriptors of cuDNN's graph API: objects with attributes.

use std::ffi::{c_int, c_void};
use std::ptr;

use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Kind,
};
use cudarc::driver::sys;

use crate::library::{LoadedLibrary, check};

type Pointer = *mut c_void;

/// The functions of the graph API.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    create: unsafe extern "C" fn(c_int, *mut Pointer) -> c_int,
    destroy: unsafe extern "C" fn(Pointer) -> c_int,
    finalize: unsafe extern "C" fn(Pointer) -> c_int,
    set: unsafe extern "C" fn(Pointer, c_int, c_int, i64, *const c_void) -> c_int,
    get: unsafe extern "C" fn(Pointer, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int,
    execute: unsafe extern "C" fn(Pointer, Pointer, Pointer) -> c_int,
    set_stream: unsafe extern "C" fn(Pointer, sys::CUstream) -> c_int,
}

impl Functions {
    pub(super) fn of(library: &LoadedLibrary) -> Result<Self, String> {
        Ok(Functions {
            create: library.function(c"cudnnBackendCreateDescriptor")?,
            destroy: library.function(c"cudnnBackendDestroyDescriptor")?,
            finalize: library.function(c"cudnnBackendFinalize")?,
            set: library.function(c"cudnnBackendSetAttribute")?,
            get: library.function(c"cudnnBackendGetAttribute")?,
            execute: library.function(c"cudnnBackendExecute")?,
            set_stream: library.function(c"cudnnSetStream")?,
        })
    }

    /// Creates a descriptor without attributes.
    pub(super) fn descriptor(self, kind: Kind) -> Result<Descriptor, String> {
        let mut descriptor = Descriptor {
            raw: ptr::null_mut(),
            functions: self,
        };
        // SAFETY: the pointer is to a field of the descriptor.
        let status = unsafe { (self.create)(kind as c_int, &mut descriptor.raw) };
        check(status, "cudnnBackendCreateDescriptor")?;
        Ok(descriptor)
    }

    /// Enqueues a plan with its buffers.
    ///
    /// # Safety
    /// The addresses of the buffers must point to device memory with the tensors of the plan.
    pub(super) unsafe fn execute(
        self,
        handle: Pointer,
        stream: sys::CUstream,
        plan: &Descriptor,
        buffers: &Descriptor,
    ) -> Result<(), String> {
        // SAFETY: the caller has exclusive access to the handle.
        check(unsafe { (self.set_stream)(handle, stream) }, "cudnnSetStream")?;
        // SAFETY: by the contract of this function.
        let status = unsafe { (self.execute)(handle, plan.raw, buffers.raw) };
        check(status, "cudnnBackendExecute")
    }
}

/// A descriptor.
pub(super) struct Descriptor {
    raw: Pointer,
    functions: Functions,
}

// SAFETY: descriptors are host memory. They are not changed after they are finalized.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the library created the descriptor, and nothing uses it.
        unsafe { (self.functions.destroy)(self.raw) };
    }
}

impl Descriptor {
    fn set<T>(&mut self, attribute: Attribute, ty: Type, values: &[T]) -> Result<(), String> {
        let (name, count) = (attribute as c_int, values.len() as i64);
        // SAFETY: the values have the type that the attribute type describes.
        let status = unsafe { (self.functions.set)(self.raw, name, ty as c_int, count, values.as_ptr().cast()) };
        check(status, &format!("setting {attribute:?}"))
    }

    pub(super) fn set_ints(&mut self, attribute: Attribute, values: &[i64]) -> Result<(), String> {
        self.set(attribute, Type::CUDNN_TYPE_INT64, values)
    }

    pub(super) fn set_float(&mut self, attribute: Attribute, value: f32) -> Result<(), String> {
        self.set(attribute, Type::CUDNN_TYPE_FLOAT, &[value])
    }

    pub(super) fn set_bool(&mut self, attribute: Attribute, value: bool) -> Result<(), String> {
        self.set(attribute, Type::CUDNN_TYPE_BOOLEAN, &[value])
    }

    /// Sets a value of one of the library's enumerations.
    pub(super) fn set_choice(&mut self, attribute: Attribute, ty: Type, value: u32) -> Result<(), String> {
        self.set(attribute, ty, &[value])
    }

    pub(super) fn set_pointers(&mut self, attribute: Attribute, values: &[sys::CUdeviceptr]) -> Result<(), String> {
        self.set(attribute, Type::CUDNN_TYPE_VOID_PTR, values)
    }

    pub(super) fn set_handle(&mut self, attribute: Attribute, handle: Pointer) -> Result<(), String> {
        self.set(attribute, Type::CUDNN_TYPE_HANDLE, &[handle])
    }

    pub(super) fn set_descriptors(&mut self, attribute: Attribute, values: &[&Descriptor]) -> Result<(), String> {
        let raw: Vec<Pointer> = values.iter().map(|descriptor| descriptor.raw).collect();
        self.set(attribute, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    /// Completes the descriptor. After this, its attributes are not changed.
    pub(super) fn finalize(&mut self) -> Result<(), String> {
        // SAFETY: the descriptor is valid.
        check(unsafe { (self.functions.finalize)(self.raw) }, "cudnnBackendFinalize")
    }

    /// Returns an integer attribute.
    pub(super) fn int(&self, attribute: Attribute) -> Result<i64, String> {
        let (mut value, mut count) = (0_i64, 0);
        let (name, ty) = (attribute as c_int, Type::CUDNN_TYPE_INT64 as c_int);
        // SAFETY: the pointers are to locals, and the value has the type of the attribute.
        let status =
            unsafe { (self.functions.get)(self.raw, name, ty, 1, &mut count, ptr::from_mut(&mut value).cast()) };
        check(status, &format!("reading {attribute:?}"))?;
        Ok(value)
    }

    /// Returns at most `most` values of one of the library's enumerations.
    pub(super) fn choices(&self, attribute: Attribute, ty: Type, most: usize) -> Result<Vec<u32>, String> {
        let (mut values, mut count) = (vec![0_u32; most], 0);
        let (name, ty) = (attribute as c_int, ty as c_int);
        // SAFETY: the array has room for `most` values.
        let status =
            unsafe { (self.functions.get)(self.raw, name, ty, most as i64, &mut count, values.as_mut_ptr().cast()) };
        check(status, &format!("reading {attribute:?}"))?;
        values.truncate(usize::try_from(count).unwrap_or(0));
        Ok(values)
    }

    /// Returns at most `most` descriptors of an attribute, which have this kind.
    pub(super) fn descriptors(&self, attribute: Attribute, kind: Kind, most: usize) -> Result<Vec<Descriptor>, String> {
        let all: Result<Vec<Descriptor>, String> = (0..most).map(|_| self.functions.descriptor(kind)).collect();
        let mut all = all?;
        let mut raw: Vec<Pointer> = all.iter().map(|descriptor| descriptor.raw).collect();
        let mut count = 0;
        let (name, ty) = (attribute as c_int, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR as c_int);
        // SAFETY: the array has `most` valid descriptors.
        let status =
            unsafe { (self.functions.get)(self.raw, name, ty, most as i64, &mut count, raw.as_mut_ptr().cast()) };
        check(status, &format!("reading {attribute:?}"))?;
        all.truncate(usize::try_from(count).unwrap_or(0));
        Ok(all)
    }
}
