//! Conformance suite on the CPU backend.

meganeura_conformance::conformance!(meganeura_cpu::CpuBackend);
