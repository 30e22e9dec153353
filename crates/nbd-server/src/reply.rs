//! Replies in the form that the client chose.

use nbd_wire::{
    Chunk, ChunkKind, Errno, Extent, HeaderStyle, SimpleReply, encode_block_status, encode_error,
    encode_offset,
};

use crate::connection::{Connection, Outbox};
use crate::haggling::CONTEXT_ID;

impl Connection {
    /// Answers a request that was carried out and returns nothing.
    pub fn reply_done(&self, cookie: u64, offset: u64, out: &mut impl Outbox) {
        match self.style {
            HeaderStyle::Compact => {
                out.bytes(&SimpleReply { error: Errno::SUCCESS, cookie }.encode());
            }
            HeaderStyle::Extended => self.put_chunk(ChunkKind::NONE, (cookie, offset), 0, out),
        }
    }

    /// Answers a request with an error.
    pub fn reply_error(
        &self,
        (cookie, offset): (u64, u64),
        error: Errno,
        message: &str,
        out: &mut impl Outbox,
    ) {
        if !self.is_structured {
            return out.bytes(&SimpleReply { error, cookie }.encode());
        }
        let contents = encode_error(error, message);
        self.put_chunk(ChunkKind::ERROR, (cookie, offset), contents.len() as u64, out);
        out.bytes(&contents);
    }

    /// Answers a read with `len_bytes` bytes, which `append` is to put behind what is put here.
    pub fn reply_data<O: Outbox>(
        &self,
        (cookie, offset): (u64, u64),
        len_bytes: u64,
        out: &mut O,
        append: impl FnOnce(&mut O),
    ) {
        if !self.is_structured {
            out.bytes(&SimpleReply { error: Errno::SUCCESS, cookie }.encode());
        } else if len_bytes == 0 {
            return self.put_chunk(ChunkKind::NONE, (cookie, offset), 0, out);
        } else {
            self.put_chunk(ChunkKind::OFFSET_DATA, (cookie, offset), len_bytes + 8, out);
            out.bytes(&encode_offset(offset));
        }
        append(out);
    }

    /// Answers a request for block status.
    pub fn reply_status(
        &self,
        (cookie, offset): (u64, u64),
        extents: &[Extent],
        out: &mut impl Outbox,
    ) {
        let contents = encode_block_status(self.style, CONTEXT_ID, extents);
        let kind = match self.style {
            HeaderStyle::Compact => ChunkKind::BLOCK_STATUS,
            HeaderStyle::Extended => ChunkKind::BLOCK_STATUS_EXTENDED,
        };
        self.put_chunk(kind, (cookie, offset), contents.len() as u64, out);
        out.bytes(&contents);
    }

    fn put_chunk(
        &self,
        kind: ChunkKind,
        (cookie, offset): (u64, u64),
        len_bytes: u64,
        out: &mut impl Outbox,
    ) {
        let chunk = Chunk { is_last: true, kind, cookie, offset, len_bytes };
        out.bytes(&chunk.encode(self.style));
    }
}
