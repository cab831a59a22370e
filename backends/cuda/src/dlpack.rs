//! DLPack: exports tensors of a session to other libraries (PyTorch, JAX, CuPy) without a copy.
//!
//! The structures are declared in DLPack 0.8, `dlpack.h`.

use std::any::Any;
use std::ffi::c_void;

use meganeura_core::DType;
use meganeura_core::session::DeviceTensor;

/// Code of the device type CUDA.
const CUDA: i32 = 2;
/// Codes of the element types: signed integers, unsigned integers, floats, and bfloat16.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// DLPack's structure `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// Code of the device type: 2 for CUDA.
    pub device_type: i32,
    /// Number of the CUDA device.
    pub device_id: i32,
}

/// DLPack's structure `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// Code of the element type.
    pub code: u8,
    /// Number of bits of a number.
    pub bits: u8,
    /// Count of numbers in an element.
    pub lanes: u16,
}

/// DLPack's structure `DLTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLTensor {
    /// Address of the first element.
    pub data: *mut c_void,
    /// Device of the tensor.
    pub device: DLDevice,
    /// Number of axes.
    pub ndim: i32,
    /// Type of an element.
    pub dtype: DLDataType,
    /// Sizes of the axes.
    pub shape: *mut i64,
    /// Strides in elements along each axis; null if the tensor is row-major and dense.
    pub strides: *mut i64,
    /// Bytes before the first element.
    pub byte_offset: u64,
}

/// DLPack's structure `DLManagedTensor`.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The tensor.
    pub dl_tensor: DLTensor,
    /// Data that the deleter frees.
    pub manager_ctx: *mut c_void,
    /// Function that the receiver calls once, when it no longer uses the tensor.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// Data that an exported tensor keeps alive.
struct TensorOwner {
    shape: Vec<i64>,
    _owner: Box<dyn Any + Send>,
}

/// Converts a session's tensor to a `DLManagedTensor`. `device` is the number of the CUDA device. The receiver must
/// call the deleter, which drops `owner`. Pass an object that keeps the session alive, so that the memory stays
/// valid.
///
/// The receiver must read and write in the order of the session's stream,
/// [`DeviceBuffer::stream`](meganeura_core::backend::DeviceBuffer). DLPack does not convey the stream.
pub fn to_dlpack(tensor: &DeviceTensor, device: i32, owner: Box<dyn Any + Send>) -> *mut DLManagedTensor {
    let code = match tensor.ty.dtype {
        DType::F16 | DType::F32 => FLOAT,
        DType::BF16 => BFLOAT,
        DType::I32 => INT,
        _ => UINT,
    };
    let shape: Vec<i64> = tensor.ty.shape.iter().map(|&size| size as i64).collect();
    let mut kept = Box::new(TensorOwner { shape, _owner: owner });
    let dl_tensor = DLTensor {
        data: tensor.buffer.address as *mut c_void,
        device: DLDevice {
            device_type: CUDA,
            device_id: device,
        },
        ndim: kept.shape.len() as i32,
        dtype: DLDataType {
            code,
            bits: match tensor.ty.dtype {
                DType::F16 | DType::BF16 => 16,
                _ => 32,
            },
            lanes: 1,
        },
        shape: kept.shape.as_mut_ptr(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    Box::into_raw(Box::new(DLManagedTensor {
        dl_tensor,
        manager_ctx: Box::into_raw(kept).cast(),
        deleter: Some(delete),
    }))
}

/// Frees a tensor.
///
/// # Safety
/// [`to_dlpack`] must have returned the tensor, and it must not be used afterwards.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensor) {
    // SAFETY: by the contract of this function, `to_dlpack` created both from boxes.
    unsafe {
        let tensor = Box::from_raw(tensor);
        drop(Box::from_raw(tensor.manager_ctx.cast::<TensorOwner>()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meganeura_core::backend::DeviceBuffer;
    use meganeura_core::{Shape, TensorType};

    use super::*;

    #[test]
    fn a_tensor_says_what_it_is_and_keeps_its_owner_until_it_is_deleted() {
        let owner = Arc::new(());
        let tensor = |dtype| DeviceTensor {
            buffer: DeviceBuffer {
                address: 0x1000,
                bytes: 48,
                stream: Some(7),
            },
            ty: TensorType::new(dtype, Shape::new(&[3, 4]).expect("a shape")),
        };
        for (dtype, code, bits) in [
            (DType::F32, 2, 32),
            (DType::F16, 2, 16),
            (DType::BF16, 4, 16),
            (DType::I32, 0, 32),
            (DType::U32, 1, 32),
        ] {
            let made = to_dlpack(&tensor(dtype), 1, Box::new(owner.clone()));
            assert_eq!(Arc::strong_count(&owner), 2);
            // SAFETY: the tensor was created above.
            let own = unsafe { &(*made).dl_tensor };
            assert_eq!((own.data as u64, own.ndim, own.byte_offset), (0x1000, 2, 0));
            assert_eq!((own.device.device_type, own.device.device_id), (2, 1));
            assert_eq!((own.dtype.code, own.dtype.bits, own.dtype.lanes), (code, bits, 1));
            // SAFETY: there are two sizes, and they are valid as long as the tensor.
            assert_eq!(unsafe { std::slice::from_raw_parts(own.shape, 2) }, [3, 4]);
            assert!(own.strides.is_null());
            // SAFETY: the tensor was created above, and is not used afterwards.
            unsafe { (*made).deleter.map(|delete| delete(made)) };
            assert_eq!(Arc::strong_count(&owner), 1);
        }
    }
}
