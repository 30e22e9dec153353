//! Files with tokens, as their owners name them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::output;

/// More than any token has.
const TOKEN_BYTES_MAX: u64 = 256;
/// That a file can be read by who neither owns it nor is of its group.
const OTHERS_READ: u32 = 0o004;

/// What is in the file at `path`. Says on stderr if everybody can read it.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.permissions().mode() & OTHERS_READ != 0 {
        let shown = path.display();
        output::note(&format!(
            "warning: every user of this machine can read the token in {shown}: `chmod 600 {shown}`"
        ));
    }
    let mut text = String::new();
    file.take(TOKEN_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
