//! The addresses of pods and nodes, and the way of packets through kernels and segment.

pub mod connection;
pub mod stack;
pub mod walk;
