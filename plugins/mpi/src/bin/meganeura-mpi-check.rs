//! Check of the communicator `mpi`: `mpirun -n 4 meganeura-mpi-check`. For tests, an argument makes
//! it fail on purpose: `mismatch`, `exit` (the last rank ends), `stall` (the last rank does not
//! participate), `loop` (until it is killed).

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use meganeura_core::distributed::{Communicator, CommunicatorOptions, open};
use meganeura_core::error::{Error, Result};

const STALL: Duration = Duration::from_secs(4);

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    match run(&word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // At once: other ranks print theirs at the same time.
            let text = format!("error: {error}\n");
            let _ = io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run(word: &str) -> Result<()> {
    let limit = Duration::from_secs(if word == "stall" { 2 } else { 60 });
    let c = open(meganeura_mpi::NAME, &CommunicatorOptions::with_time_limit(limit))?;
    let (rank, size) = (c.rank(), c.size());
    collectives(&*c)?;
    let is_last = rank + 1 == size;
    match word {
        "" => {
            if rank == 0 {
                println!("{size} ranks: every collective gives what it should");
            }
            Ok(())
        }
        "mismatch" => c.all_reduce_sum("weights", &mut vec![1.0; if is_last { 5 } else { 4 }]),
        "exit" if is_last => {
            c.abort("it was told to");
            Err(Error::misuse("the last rank ends, as it was told to", ""))
        }
        "stall" if is_last => {
            thread::sleep(STALL);
            Ok(())
        }
        "exit" | "stall" => c.all_reduce_sum("bucket 0", &mut [1.0; 1000]),
        "loop" => {
            println!("pid {rank} {}", std::process::id());
            let mut data = vec![1.0; 10_000];
            loop {
                data.fill(1.0);
                c.all_reduce_sum("bucket 0", &mut data)?;
            }
        }
        other => Err(Error::misuse(
            format!("there is no '{other}'"),
            "give nothing, or `mismatch`, `exit`, `stall` or `loop`",
        )),
    }
}

fn collectives(c: &dyn Communicator) -> Result<()> {
    let (rank, size) = (c.rank(), c.size());
    let expect = |what: &str, is_right: bool| {
        if is_right {
            Ok(())
        } else {
            Err(Error::misuse(format!("rank {rank}: {what} gave a wrong result"), ""))
        }
    };
    for len in [1, 1000, 1 << 20] {
        let mut data = vec![rank as f32 + 1.0; len];
        c.all_reduce_sum("x", &mut data)?;
        let sum = (size * (size + 1) / 2) as f32;
        expect("all-reduce", data.iter().all(|&value| value == sum))?;
        let all: Vec<f32> = (0..size * len).map(|i| (i / len) as f32).collect();
        let mut own = vec![0.0; len];
        c.reduce_scatter_sum("x", &all, &mut own)?;
        expect("reduce-scatter", own.iter().all(|&value| value == (rank * size) as f32))?;
        let mut gathered = vec![0; size * len];
        c.all_gather("x", &vec![rank as u8; len], &mut gathered)?;
        let is_right = |(at, &value): (usize, &u8)| usize::from(value) == at / len;
        expect("all-gather", gathered.iter().enumerate().all(is_right))?;
        let mut data = vec![rank as u8; len];
        c.broadcast("x", size - 1, &mut data)?;
        expect("broadcast", data.iter().all(|&value| usize::from(value) == size - 1))?;
    }
    c.barrier("the end")
}
