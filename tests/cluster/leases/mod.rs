//! Leases of this node and of others: who holds which, and which are accepted.

mod change;
mod hostile;
mod identity;
mod own;
