//! The locks of what cores share: those of a model checker, where that looks at them.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
