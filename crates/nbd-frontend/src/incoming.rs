//! Payload on its way in: memory for it, and the request that it becomes.

use dataplane::{Share, footprint};
use io_traits::{Buffer, Device, World};
use nbd_server::{Operation, Refused};
use nbd_wire::Request;
use volume::Volume;

use crate::connection::Connection;
use crate::work::{Data, Reply, Rest, Work, blocks_of};

/// A request whose payload is on its way.
pub(crate) struct Incoming {
    request: Request,
    content: Content,
}

/// The fate of payload.
enum Content {
    /// It is kept, as soon as there is memory for it.
    Kept {
        buffer: Option<(Buffer, Share)>,
        /// The byte of the buffer where the payload begins.
        skip: usize,
        received: usize,
    },
    /// It is passed over: the request is refused.
    Dropped(Refused),
}

impl<W: World, D: Device> Connection<W, D> {
    /// Takes in the header of a request whose payload follows. Returns the memory that is to be found before that is read
    /// (NBD-EXPORT-3).
    pub(crate) fn expect(&self, request: Request) -> Option<i64> {
        let (content, bytes) = match self.decode(&request) {
            Ok(Operation::Write { offset, len_bytes }) => {
                let (range, skip) = blocks_of(offset, len_bytes.into());
                let len_bytes = range.blocks as usize * units::BLOCK_SIZE;
                let is_copied =
                    skip > 0 || self.has_metadata() || len_bytes as u64 != request.len_bytes;
                let copies = if is_copied { 2 } else { 1 };
                let kept = Content::Kept { buffer: None, skip: skip as usize, received: 0 };
                (kept, (range.blocks > 0).then(|| footprint(len_bytes) * copies))
            }
            Ok(_) => {
                let message = "the command has no payload";
                (Content::Dropped(Refused { errno: nbd_wire::Errno::EINVAL, message }), None)
            }
            Err(refused) => (Content::Dropped(refused), None),
        };
        *self.incoming.borrow_mut() = Some(Incoming { request, content });
        bytes
    }

    /// Memory for the payload was found.
    pub(crate) fn provide(&self, share: Share) {
        if let Some(Incoming { request, content: Content::Kept { buffer, .. } }) =
            &mut *self.incoming.borrow_mut()
        {
            let (range, _) = blocks_of(request.offset, request.len_bytes);
            *buffer = Some((Buffer::new(range.blocks as usize), share));
        }
    }

    /// Takes in a part of the payload.
    pub(crate) fn copy(&self, bytes: &[u8]) {
        if let Some(Incoming { content: Content::Kept { buffer, skip, received }, .. }) =
            &mut *self.incoming.borrow_mut()
            && let Some((buffer, _)) = buffer
        {
            let at = *skip + *received;
            buffer.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
            *received += bytes.len();
        }
    }

    /// All payload has come.
    pub(crate) fn payload_complete(&self) {
        let Some(Incoming { request, content }) = self.incoming.take() else { return };
        let Request { cookie, offset, .. } = request;
        let (buffer, skip, received) = match content {
            Content::Kept { buffer, skip, received } => (buffer, skip, received),
            Content::Dropped(refused) => return self.reply_refused(&request, refused),
        };
        let Some((buffer, share)) = buffer else {
            return self.reply_done(cookie, offset);
        };
        let data = Data {
            blocks: buffer.into_slice(),
            first: blocks_of(offset, request.len_bytes).0.start,
            part: skip..skip + received,
            has_metadata: self.has_metadata(),
        };
        self.begin(Work {
            cookie,
            offset,
            changes: true,
            reply: Reply::Done,
            rest: Rest::Data(data),
            _share: Some(share),
        });
    }

    /// Returns whether blocks of the export have metadata.
    pub(crate) fn has_metadata(&self) -> bool {
        let export = self.export.borrow();
        export.as_ref().is_some_and(|it| !it.with_volume(Volume::metadata_size).is_none())
    }
}
