meganeura_conformance::conformance!(my_backend::Mine, fallback: meganeura::cpu::CpuBackend);
