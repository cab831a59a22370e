meganeura_bench::compare!(my_backend, "cpu", "mine");
