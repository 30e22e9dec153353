//! Locks and atomics: those of a model checker, where that looks at them.

#[cfg(feature = "loom")]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
#[cfg(feature = "loom")]
pub(crate) use loom::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "loom")]
pub(crate) use modelled::OnceLock;
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "loom")]
mod modelled {
    use loom::sync::Mutex;

    use super::{AtomicBool, Ordering};

    /// The standard library's, as the model sees it: what one thread made, another may access once it has found it.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        made: std::sync::OnceLock<T>,
        is_made: AtomicBool,
        making: Mutex<()>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            let (is_made, making) = (AtomicBool::new(false), Mutex::new(()));
            Self { made: std::sync::OnceLock::new(), is_made, making }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            self.is_made.load(Ordering::Acquire).then(|| self.made.get().expect("it is made"))
        }

        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let making = self.making.lock().expect("no thread panics");
            if self.get().is_none() {
                assert!(self.made.set(make()).is_ok(), "made once");
                self.is_made.store(true, Ordering::Release);
            }
            drop(making);
            self.get().expect("it is made")
        }
    }
}
