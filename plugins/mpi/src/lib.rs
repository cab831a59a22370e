//! The communicator `mpi`: collectives of data-parallel training through an MPI library (Open MPI or MPICH), by the crate
//! `mpi`. Without the feature `mpi`, which needs the library's headers, this crate is empty.
//!
//! Collectives are the library's non-blocking ones, which this crate waits for with a time limit. Before each, ranks compare
//! what they call, so that a difference is an error and not a wrong sum or a wait. GPUs are served by host memory.
//!
//! A communicator that failed is not finalized: other ranks may be gone, and MPI would wait for them. The program is to end
//! with an error then, by which `mpirun` ends what is left.

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
