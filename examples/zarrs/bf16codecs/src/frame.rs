//! Parts of frames: the head, and ranges of blocks.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr::{self, NonNull};

use crate::decode::{DecodeOptions, Info};
use crate::error::{call, filled, Error, Result};
use crate::ffi::{self, Empty};
use crate::names::mode_name;

/// So many first bytes, or all of a smaller frame, tell [`head_size`].
pub const PREFIX_SIZE: usize = 48;

/// How many first bytes of a frame [`Frame::open`] needs; of a growing frame, how many its directory
/// has.
///
/// # Errors
///
/// If no frame begins so.
pub fn head_size(prefix: &[u8]) -> Result<u64> {
    let mut size = 0;
    // SAFETY: the length goes with its pointer, and the results are values of this function.
    call(|error| unsafe {
        ffi::bf16codecs_head_size(prefix.as_ptr().cast(), prefix.len(), &mut size, error)
    })?;
    Ok(size)
}

/// What a block is coded against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    /// Nothing.
    None,
    /// Another block of the frame, which comes before it.
    Block(u64),
    /// The items in the same place of a base outside of the frame.
    Outside,
}

/// A block of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// How many items it has.
    pub items: u64,
    /// Where its bytes are in the frame.
    pub offset: u64,
    /// How many bytes it has there.
    pub size: u64,
    /// Where what it decodes to is in what the frame does.
    pub raw_offset: u64,
    /// How many bytes that has; with the last block, the odd bytes at the end of the buffer.
    pub raw_size: u64,
    /// What it is coded against.
    pub parent: Parent,
    /// Of the decoded items.
    pub checksum: Option<u32>,
}

/// How a plane of a block is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plane {
    /// Such as "`rans_pairs`".
    pub mode: &'static str,
    /// How many bytes it has in the block.
    pub size: usize,
}

/// The head of a frame: enough to know which bytes a range of its blocks has, and to decode them.
///
/// ```
/// use bf16codecs::{encode, head_size, DecodeOptions, EncodeOptions, Frame, PREFIX_SIZE};
///
/// let raw = [1, 2, 3, 4].repeat(3000);
/// let options = EncodeOptions { block_items: 1024, ..Default::default() };
/// let stored = encode(&raw, &options)?; // in a file, or behind an address
///
/// let size = head_size(&stored[..PREFIX_SIZE])? as usize;
/// let frame = Frame::open(&stored[..size])?;
/// let block = frame.block(2)?;
/// let payload = &stored[block.offset as usize..][..block.size as usize];
/// let items = frame.decode_blocks(2..3, payload, &DecodeOptions::default())?;
/// assert_eq!(items, raw[block.raw_offset as usize..][..block.raw_size as usize]);
/// # Ok::<(), bf16codecs::Error>(())
/// ```
#[derive(Debug)]
pub struct Frame {
    opened: NonNull<ffi::Frame>,
    info: Info,
}

// SAFETY: what the library opened does not change, has nothing of the thread that opened it, and may
// be used by several threads at once and closed by any: `bf16codecs.h` says so.
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it any more.
        unsafe { ffi::bf16codecs_close(self.opened.as_ptr()) }
    }
}

/// Closes what was opened where no [`Frame`] comes of it.
struct Opened(*mut ffi::Frame);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it is open, or null, and nobody uses it any more.
        unsafe { ffi::bf16codecs_close(self.0) }
    }
}

impl Frame {
    /// Opens a frame, of which these are the first bytes; all of its head, and more may be. They are
    /// not needed any more afterwards.
    ///
    /// # Errors
    ///
    /// If it is not the head of a frame.
    pub fn open(head: &[u8]) -> Result<Self> {
        // SAFETY: the length goes with its pointer.
        Self::opened_by(|frame, error| unsafe {
            ffi::bf16codecs_open(head.as_ptr().cast(), head.len(), frame, error)
        })
    }

    /// Makes a frame of what a function of the library opens.
    pub(crate) fn opened_by(
        open: impl FnOnce(*mut *mut ffi::Frame, *mut ffi::Error) -> c_int,
    ) -> Result<Self> {
        let mut opened = Opened(ptr::null_mut());
        call(|error| open(&mut opened.0, error))?;
        let frame = NonNull::new(opened.0).expect("the library opened it");
        let mut told = ffi::Info::empty();
        // SAFETY: the frame is open, and the results are values of this function.
        call(|error| unsafe { ffi::bf16codecs_frame_info(frame.as_ptr(), &mut told, error) })?;
        let info = Info::of(&told)?;
        opened.0 = ptr::null_mut();
        Ok(Self { opened: frame, info })
    }

    /// What the frame says of itself.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Tells where a block is.
    ///
    /// # Errors
    ///
    /// If there is none of this number.
    pub fn block(&self, number: u64) -> Result<Block> {
        let mut told = ffi::Block::empty();
        // SAFETY: the frame is open, and the results are values of this function.
        call(|error| unsafe {
            ffi::bf16codecs_block_info(self.opened.as_ptr(), number, &mut told, error)
        })?;
        Ok(Block {
            items: told.items,
            offset: told.offset,
            size: told.size,
            raw_offset: told.raw_offset,
            raw_size: told.raw_size,
            parent: match told.parent {
                ffi::NO_PARENT => Parent::None,
                ffi::OUTSIDE => Parent::Outside,
                number => Parent::Block(number),
            },
            checksum: (told.has_checksum != 0).then_some(told.checksum),
        })
    }

    /// Tells how the planes of a block are stored, whose bytes are given.
    ///
    /// # Errors
    ///
    /// If there is no block of this number, it has another size, or it is damaged.
    pub fn planes(&self, number: u64, block: &[u8]) -> Result<Vec<Plane>> {
        let mut told = [ffi::Plane { mode: 0, size: 0 }; ffi::MAX_ITEM_SIZE];
        // SAFETY: the frame is open, the length goes with its pointer, and there is room for as many
        // planes as the largest item has.
        call(|error| unsafe {
            ffi::bf16codecs_block_planes(
                self.opened.as_ptr(),
                number,
                block.as_ptr().cast(),
                block.len(),
                told.as_mut_ptr(),
                error,
            )
        })?;
        let there = told.iter().take(self.info.item_size);
        let plane = |plane: &ffi::Plane| Plane { mode: mode_name(plane.mode), size: plane.size };
        Ok(there.map(plane).collect())
    }

    /// How many bytes a range of blocks decodes to.
    ///
    /// # Errors
    ///
    /// If there are no such blocks.
    pub fn raw_size(&self, blocks: Range<u64>) -> Result<u64> {
        if blocks.is_empty() {
            return Err(Error::InvalidArgument(format!("no blocks in {blocks:?}")));
        }
        let (first, last) = (self.block(blocks.start)?, self.block(blocks.end - 1)?);
        Ok(last.raw_offset + last.raw_size - first.raw_offset)
    }

    /// Decodes a range of blocks, all of one version.
    ///
    /// `payload` has the frame's bytes from the first block's on, and as many as these have; the base
    /// of the options, the decoded items of their parents.
    ///
    /// # Errors
    ///
    /// If there are no such blocks, or something is wrong with their bytes.
    pub fn decode_blocks(
        &self,
        blocks: Range<u64>,
        payload: &[u8],
        options: &DecodeOptions,
    ) -> Result<Vec<u8>> {
        let size = self.raw_size(blocks.clone())?;
        let write = |out: *mut u8, room, size: &mut usize| {
            // SAFETY: `filled` has so much room.
            unsafe { self.decode_to(blocks, payload, options, out, room, size) }
        };
        // SAFETY: `decode_to` writes so many bytes, and nothing outside of the room that it is given.
        unsafe { filled(size, write) }
    }

    /// Decodes a range of blocks to `out`, and returns how many bytes they took of it.
    ///
    /// # Errors
    ///
    /// As of [`Frame::decode_blocks`]; or if `out` is too small. Then it is not specified what `out`
    /// holds.
    pub fn decode_blocks_into(
        &self,
        blocks: Range<u64>,
        payload: &[u8],
        options: &DecodeOptions,
        out: &mut [u8],
    ) -> Result<usize> {
        let (start, room, mut size) = (out.as_mut_ptr(), out.len(), 0);
        // SAFETY: there is so much room in `out`.
        unsafe { self.decode_to(blocks, payload, options, start, room, &mut size) }?;
        Ok(size)
    }

    /// # Safety
    ///
    /// There is room for so many bytes at `out`, which may be uninitialized, and nobody else uses it.
    unsafe fn decode_to(
        &self,
        blocks: Range<u64>,
        payload: &[u8],
        options: &DecodeOptions,
        out: *mut u8,
        room: usize,
        size: &mut usize,
    ) -> Result<()> {
        options.with(|options| {
            // SAFETY: the frame is open; lengths go with their pointers, which are of memory that
            // lives during the call.
            call(|error| unsafe {
                ffi::bf16codecs_decode_blocks(
                    self.opened.as_ptr(),
                    payload.as_ptr().cast(),
                    payload.len(),
                    blocks.start,
                    blocks.end,
                    options,
                    out.cast(),
                    room,
                    size,
                    error,
                )
            })
        })
    }
}
