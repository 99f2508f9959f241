//! tweed
