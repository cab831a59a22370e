//! Execution of translated kernels on the CPU. The system's C++ compiler compiles them to a library.

use std::ffi::c_void;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::Library;
use meganeura_cuda::CudaSource;

/// GPU instructions in the prelude, with replacements for the host.
const INSTRUCTIONS: &[(&str, &str)] = &[
    (
        r#"asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.bits));"#,
        "r = host_from_half(a.bits);",
    ),
    (
        r#"asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));"#,
        "r = (u32)host_to_half(low) | (u32)host_to_half(high) << 16;",
    ),
    (
        r#"asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(a));"#,
        "r.bits = host_to_half(a);",
    ),
    (
        r#"asm(instruction " %0, %1, %2;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits));"#,
        "r.bits = host_half(instruction, a.bits, b.bits);",
    ),
    (
        r#"asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits));"#,
        "r = to_f16(to_f32(a) * to_f32(b) + to_f32(c));",
    ),
];

/// Replaces the text between two markers.
fn replace_between(text: &str, from: &str, to: &str, by: &str) -> String {
    let Some(start) = text.find(from) else {
        return text.to_owned();
    };
    let length = text[start..].find(to).unwrap_or_else(|| panic!("{to} after {from}"));
    format!("{}{by}{}", &text[..start], &text[start + length..])
}

/// Returns the source with replacements that the C++ compiler of the host accepts.
fn for_host(written: &CudaSource) -> String {
    let mut source = written.source.clone();
    for (instruction, instead) in INSTRUCTIONS {
        source = source.replace(instruction, instead);
    }
    let source = replace_between(
        &source,
        "    const u32 at = (u32)__cvta_generic_to_shared(row);",
        "}\ntemplate <bool ROWS> WGSL matrix_a load_a_shared",
        "    host_load_parts(to, row, TRANSPOSED);\n",
    );
    let source = replace_between(
        &source,
        "#if __CUDA_ARCH__ >= 800\n    asm(\"mma",
        "}\nWGSL matrix_c multiply_add(",
        "    host_multiply_add(c, a, b);\n",
    );
    assert!(!source.contains("asm"), "an instruction that the host does not know");
    source
}

/// Runs a kernel on named buffers of words. Returns `None` without a compiler.
pub(crate) fn run(written: &CudaSource, groups: u32, buffers: &mut [(&str, Vec<u32>)]) -> Option<()> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("meganeura-cuda-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (text, library) = (folder.join("kernel.cpp"), folder.join("kernel.so"));

    let (mut parameters, mut values) = (Vec::new(), Vec::new());
    for binding in &written.bindings {
        let buffer = buffers.iter_mut().find(|(name, _)| *name == binding.name);
        let (_, buffer) = buffer.unwrap_or_else(|| panic!("no buffer {}", binding.name));
        assert!(buffer.len() as u64 * 4 >= binding.least_bytes, "{}", binding.name);
        values.push(buffer.as_mut_ptr() as u64);
        if binding.has_length {
            values.push(buffer.len() as u64 * 4);
        }
    }
    for place in 0..values.len() {
        parameters.push(format!("Parameter{{values[{place}]}}"));
    }
    let [threads, 1, 1] = written.threads else {
        panic!("blocks of one axis")
    };
    let source = format!(
        "{}\n{}\nextern \"C\" void run(const uint64_t* values, const unsigned* groups) {{\n    \
         host_run([&] {{ kernel::{}({}); }}, {threads}, groups);\n}}\n",
        include_str!("host.hpp"),
        for_host(written),
        written.entry,
        parameters.join(", "),
    );
    fs::write(&text, source).expect("a source");
    let compiler = Command::new("c++")
        .args([
            "-std=c++20",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            "-pthread",
            "-ffp-contract=off",
            "-fno-strict-aliasing",
            "-o",
        ])
        .args([&library, &text])
        .output();
    let Ok(output) = compiler else {
        println!("not run on the processor: there is no C++ compiler");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    {
        // SAFETY: the library was compiled above.
        let library = unsafe { Library::new(&library) }.expect("the library");
        type Run = unsafe extern "C" fn(*const c_void, *const u32);
        // SAFETY: the function has that type.
        let run = unsafe { library.get::<Run>(b"run\0") }.expect("its function");
        // SAFETY: there is a value for each parameter of the kernel. The buffers outlive the call, and kernels stay
        // within them.
        unsafe { run(values.as_ptr().cast(), [groups, 1, 1].as_ptr()) };
    }
    fs::remove_dir_all(&folder).expect("the folder");
    Some(())
}
