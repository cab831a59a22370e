// Functions of the shader library for which the GPU has instructions; see `natives.rs`.
namespace wgsl {

WGSL f32 native_f16_to_f32(u32 half) { return to_f32(f16{(unsigned short)half}); }
WGSL vec<f32, 4> native_f16_to_f32x4(vec<u32, 2> pairs) {
    return vec<f32, 4>{{native_f16_to_f32(pairs.at[0] & 0xffffu), native_f16_to_f32(pairs.at[0] >> 16),
                        native_f16_to_f32(pairs.at[1] & 0xffffu), native_f16_to_f32(pairs.at[1] >> 16)}};
}
WGSL u32 native_f32_to_f16(f32 x) { return to_f16(x).bits; }

} // namespace wgsl
