//! The native module of the Python package `farflash`, whose Python parts are in `farflash/`.
//!
//! - PYTHON-1: no thread of the library ever needs the interpreter: outcomes wait in Rust memory until Python
//!   fetches them. So a program that ends with requests under way just ends.
//! - PYTHON-2: while a call waits, other Python threads run, and signals are looked for. What a signal interrupts is
//!   not carried out later, unless a second one comes: what would change something is waited for.
//! - PYTHON-3: reads into memory and all that is written, and by calls that wait what is compared and swapped, lend
//!   Python's memory to the library's thread. A call that waits has it back before it ends, and a future of asyncio
//!   before it is done; one that is cancelled has what was to be read into back at once, and what is sent from when
//!   that is over (`lending.rs`). All else copies, while the interpreter is held: metadata, what is read with metadata,
//!   and what is compared and swapped by asyncio.

#![deny(unsafe_code)]

mod buffers;
mod cluster;
mod completions;
mod errors;
mod lending;
mod numbers;
mod volume;
mod waiting;

#[pyo3::pymodule]
mod _farflash {
    #[pymodule_export]
    use crate::cluster::{Cluster, open_place};
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::volume::Volume;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
