//! Nothing but dependencies: others' crates with the features that they have where the whole workspace is built.
//!
//! Cargo compiles a crate once for each set of features. A package that is built by itself turns on fewer of them than
//! the workspace does, so that nearly all that it stands on would be compiled again. With this crate among its
//! dependencies it is not: the simulator's tests have it, and the Python package has it while it is tested.
