//! Access to NVRTC for tests. Without NVRTC, tests print a message.

use std::env;

use meganeura_cuda::Nvrtc;

/// Returns the compiler. If it is missing, prints a message, or fails if `MEGANEURA_REQUIRE_NVRTC=1`.
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
