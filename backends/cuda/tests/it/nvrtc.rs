//! NVIDIA's compiler, or a line that says that there is none.

use std::env;

use meganeura_cuda::Nvrtc;

/// The compiler; without one a line that says so, or an error where `MEGANEURA_REQUIRE_NVRTC=1`.
pub(crate) fn find() -> Option<Nvrtc> {
    match Nvrtc::open() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            println!("CUDA-NOT-COMPILED: {error}");
            let is_required = env::var("MEGANEURA_REQUIRE_NVRTC").as_deref() == Ok("1");
            assert!(!is_required, "{error}");
            None
        }
    }
}
