//! Frames to bytes, and what frames say of themselves.

use std::mem::size_of;
use std::ptr;

use crate::error::{call, filled, Result};
use crate::ffi::{self, Empty};
use crate::names::{Codec, Dtype};
use crate::zstd::{table, Zstandard};

/// What decoding may need besides a frame.
#[derive(Clone, Copy, Default)]
pub struct DecodeOptions<'a> {
    /// Of a frame that has differences to it.
    pub base: Option<&'a [u8]>,
    /// Of a growing frame: versions that are not there are bytes of 255.
    pub padded: bool,
    /// For planes of Zstandard.
    pub zstd: Option<&'a dyn Zstandard>,
}

impl DecodeOptions<'_> {
    /// Calls a function with these options as the library has them.
    pub(crate) fn with<T>(&self, function: impl FnOnce(&ffi::DecodeOptions) -> T) -> T {
        let zstd = self.zstd.as_ref().map(table);
        let base = self.base.map_or((ptr::null(), 0), |base| (base.as_ptr(), base.len()));
        function(&ffi::DecodeOptions {
            struct_size: size_of::<ffi::DecodeOptions>(),
            base: base.0.cast(),
            base_size: base.1,
            padded: self.padded.into(),
            zstd: zstd.as_ref().map_or(ptr::null(), ptr::from_ref),
        })
    }
}

/// What a frame says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// Of the format.
    pub version: u32,
    /// What encoded it.
    pub codec: Codec,
    /// What it took the numbers for.
    pub dtype: Dtype,
    /// Whether its planes are whole bytes.
    pub by_byte: bool,
    /// Whether blocks have checksums; not of a growing frame, whose versions tell it each.
    pub has_checksums: bool,
    /// The digest of the base that it has differences to, if there is one outside of it.
    pub base_digest: Option<u64>,
    /// Versions in it: 1 in most; of a growing one, those that are there.
    pub steps: u32,
    /// Of a growing frame: for how many versions it has room; 0 for others.
    pub room: u32,
    /// Size of an item in bytes.
    pub item_size: usize,
    /// Size of what [`decode`] gives, without padding.
    pub raw_size: u64,
    /// Size of what [`decode`] gives with padding.
    pub padded_size: u64,
    /// Size of the frame.
    pub frame_size: u64,
    /// Bytes before the first block, or of a growing frame's directory.
    pub head_size: u64,
    /// Items in each block but the last of a version.
    pub block_items: u64,
    /// Blocks of all versions; 0 for a growing frame.
    pub blocks: u64,
}

impl Info {
    pub(crate) fn of(told: &ffi::Info) -> Result<Self> {
        Ok(Self {
            version: told.version.unsigned_abs(),
            codec: Codec::of_number(told.codec)?,
            dtype: Dtype::of_number(told.dtype)?,
            by_byte: told.by_byte != 0,
            has_checksums: told.has_checksums != 0,
            base_digest: (told.needs_base != 0).then_some(told.base_digest),
            steps: told.steps,
            room: told.room,
            item_size: told.item_size as usize, // at most 8
            raw_size: told.raw_size,
            padded_size: told.padded_size,
            frame_size: told.frame_size,
            head_size: told.head_size,
            block_items: told.block_items,
            blocks: told.blocks,
        })
    }
}

/// Tells what a frame says of itself. Of its blocks, nothing is looked at.
///
/// # Errors
///
/// If it is not a whole frame.
pub fn inspect(frame: &[u8]) -> Result<Info> {
    let mut told = ffi::Info::empty();
    // SAFETY: the length goes with its pointer, and the results are values of this function.
    call(|error| unsafe {
        ffi::bf16codecs_inspect(frame.as_ptr().cast(), frame.len(), &mut told, error)
    })?;
    Info::of(&told)
}

/// Decodes a whole frame.
///
/// It allocates as much as the frame claims: where that may be too much, ask [`inspect`] first.
///
/// # Errors
///
/// If it is not an intact frame, needs something that the options lack, or there is no memory.
pub fn decode(frame: &[u8], options: &DecodeOptions) -> Result<Vec<u8>> {
    let info = inspect(frame)?;
    let size = if options.padded { info.padded_size } else { info.raw_size };
    // SAFETY: `decode_to` writes so many bytes, and nothing outside of the room that it is given.
    unsafe { filled(size, |out, room, size| decode_to(frame, options, out, room, size)) }
}

/// Decodes a whole frame to `out`, and returns how many bytes it took of it.
///
/// # Errors
///
/// As of [`decode`]; or if `out` is too small. Then it is not specified what `out` holds.
pub fn decode_into(frame: &[u8], options: &DecodeOptions, out: &mut [u8]) -> Result<usize> {
    let (start, room, mut size) = (out.as_mut_ptr(), out.len(), 0);
    // SAFETY: there is so much room in `out`.
    unsafe { decode_to(frame, options, start, room, &mut size) }?;
    Ok(size)
}

/// # Safety
///
/// There is room for so many bytes at `out`, which may be uninitialized, and nobody else uses it.
unsafe fn decode_to(
    frame: &[u8],
    options: &DecodeOptions,
    out: *mut u8,
    room: usize,
    size: &mut usize,
) -> Result<()> {
    options.with(|options| {
        // SAFETY: lengths go with their pointers, which are of memory that lives during the call.
        call(|error| unsafe {
            ffi::bf16codecs_decode(
                frame.as_ptr().cast(),
                frame.len(),
                options,
                out.cast(),
                room,
                size,
                error,
            )
        })
    })
}
