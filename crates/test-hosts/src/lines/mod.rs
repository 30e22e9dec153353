//! A protocol of lines, the smallest that a front end can speak: it shows that the seam before a core is enough for another one
//! than NVMe.

mod frontend;
mod host;

pub use frontend::LineFrontend;
pub use host::{Host, portal};
