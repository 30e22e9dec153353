//! The structures of `farflash.h`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::time::Duration;

use farflash_client::{OpenOptions, Properties, Tokens};

use crate::edge::{Failure, optional_text};

/// `farflash_tokens`
#[repr(C)]
pub struct CTokens {
    id: [c_char; 40],
    token: [c_char; 160],
    controller_token: [c_char; 160],
}

/// `farflash_open_options`
#[repr(C)]
pub struct COpenOptions {
    struct_size: usize,
    token: *const c_char,
    controller_token: *const c_char,
    host_nqn: *const c_char,
    connections: u16,
    depth: u16,
    no_digests: u32,
    recovery_timeout_ms: u64,
}

/// `farflash_volume_properties`
#[repr(C)]
pub struct CProperties {
    size_bytes: u64,
    atomic_write_bytes: u64,
    transfer_bytes_max: u64,
    reconnects: u64,
    block_size: u32,
    uuid: [c_char; 40],
    nqn: [c_char; 224],
    address: [c_char; 64],
    metadata_size: u32,
}

// The last field takes the place of padding: programs that were built without it have room for it.
#[cfg(target_pointer_width = "64")]
const _: () =
    assert!(size_of::<CProperties>() == 368 && offset_of!(CProperties, metadata_size) == 364);

/// `farflash_blocks`
#[repr(C)]
pub struct CBlocks {
    pub(crate) data: *mut c_void,
    pub(crate) len: usize,
    pub(crate) metadata: *mut c_void,
    pub(crate) metadata_len: usize,
}

/// What all requests have of `farflash_request`. Programs that were built before there were requests with
/// metadata have no more than this.
#[repr(C)]
pub struct CRequest {
    pub(crate) op: c_int,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) buffer: *mut c_void,
    pub(crate) expected: *const c_void,
}

/// All of `farflash_request`, as requests with metadata have it.
#[repr(C)]
pub struct CRequestEx {
    pub(crate) request: CRequest,
    pub(crate) metadata: *mut c_void,
    pub(crate) metadata_len: u64,
    pub(crate) expected_metadata: *const c_void,
}

const _: () = assert!(offset_of!(CRequestEx, metadata) == size_of::<CRequest>());

/// `text` with a zero at the end; what does not fit is cut off, which no text of ours is.
fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array[..N - 1].iter_mut().zip(text.bytes()) {
        *place = byte as c_char;
    }
    array
}

impl CTokens {
    pub(crate) fn new(id: &str, tokens: &Tokens) -> Self {
        Self {
            id: array(id),
            token: array(&tokens.token),
            controller_token: array(&tokens.controller_token),
        }
    }
}

impl CProperties {
    pub(crate) fn new(properties: &Properties) -> Self {
        Self {
            size_bytes: properties.size_bytes,
            atomic_write_bytes: properties.atomic_write_bytes,
            transfer_bytes_max: properties.transfer_bytes_max,
            reconnects: properties.reconnects,
            block_size: properties.block_size,
            uuid: array(&properties.uuid().map(|uuid| uuid.to_string()).unwrap_or_default()),
            nqn: array(properties.nqn.as_str()),
            address: array(&properties.address.to_string()),
            metadata_size: properties.metadata_size,
        }
    }
}

impl COpenOptions {
    /// As the library takes them.
    ///
    /// # Safety
    /// The strings are null, or end in a zero and stay as they are meanwhile.
    pub(crate) unsafe fn options(&self) -> Result<OpenOptions, Failure> {
        if self.struct_size != size_of::<Self>() {
            let text = format!("struct_size is {}, not {}", self.struct_size, size_of::<Self>());
            return Err(Failure::argument(text));
        }
        let mut options = OpenOptions::from_env();
        // SAFETY: the caller's promise, for all three.
        let (token, controller_token, host_nqn) = unsafe {
            (
                optional_text(self.token, "token")?,
                optional_text(self.controller_token, "controller_token")?,
                optional_text(self.host_nqn, "host_nqn")?,
            )
        };
        if let Some(token) = token {
            options.token = Some(token.to_owned());
        }
        if let Some(token) = controller_token {
            options.controller_token = Some(token.to_owned());
        }
        options.host_nqn = host_nqn.map(str::to_owned);
        if self.connections > 0 {
            options.connections = self.connections;
        }
        if self.depth > 0 {
            options.depth = self.depth;
        }
        options.digests = self.no_digests == 0;
        if self.recovery_timeout_ms > 0 {
            options.recovery_timeout = Duration::from_millis(self.recovery_timeout_ms);
        }
        Ok(options)
    }
}
