//! The communicator `mpi`: collectives of data-parallel training through an MPI library (Open MPI
//! or MPICH), with the crate `mpi`. Without the feature `mpi`, which needs the library's headers,
//! this crate is empty.
//!
//! Collectives are the library's non-blocking ones, which this crate awaits with a time limit.
//! Before each, ranks compare their calls, so that a difference is an error instead of a wrong sum
//! or a deadlock. GPUs use host memory.
//!
//! A communicator that failed is not finalized: other ranks may be gone, and MPI would wait for
//! them. The program should then exit with an error, which makes `mpirun` end the remaining
//! processes.

#[cfg(feature = "mpi")]
mod call;
#[cfg(feature = "mpi")]
mod communicator;
#[cfg(feature = "mpi")]
mod notice;
#[cfg(feature = "mpi")]
mod signal;
#[cfg(feature = "mpi")]
mod wait;

#[cfg(feature = "mpi")]
pub use communicator::{MpiCommunicator, NAME};
