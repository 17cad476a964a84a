//! The module `gradus._native`, on which the Python package `gradus` is built.
//!
//! All computations run on threads of gradus, without the interpreter's lock; the waiting thread handles Ctrl-C (`compute.rs`). Python
//! callables are plug-ins (`callables.rs`), so a run from Python is an ordinary run. gradus has its own memory allocator, which nothing
//! else in the process uses.

#![warn(missing_docs)]

mod callables;
mod commands;
mod compute;
mod convert;
mod data;
mod environments;
mod errors;
mod observers;
mod sampling;
mod session;
mod trainer;
mod training;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The native functions of the Python package.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::commands::{call, keys, main, measure, set_program};
    #[pymodule_export]
    use crate::data::{keep_file, write_table};
    #[pymodule_export]
    use crate::session::NativeSession;
    #[pymodule_export]
    use crate::trainer::NativeTrainer;
    #[pymodule_export]
    use crate::training::{plan, train};

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
