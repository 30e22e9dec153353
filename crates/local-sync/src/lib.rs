//! Waiting between tasks of one core.
