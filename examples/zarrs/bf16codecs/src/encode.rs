//! Bytes to frames.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr;

use crate::error::{call, filled, Error, Result};
use crate::ffi;
use crate::names::{Codec, Dtype};
use crate::zstd::{table, Zstandard};

/// How to encode. The default is [`Codec::Huffman`] for bfloat16.
#[derive(Clone, Copy)]
pub struct EncodeOptions<'a> {
    /// What encodes; not [`Codec::Growing`].
    pub codec: Codec,
    /// How the bytes of a number become planes. Any bytes come back, whatever they are.
    pub dtype: Dtype,
    /// Of [`Codec::Arithmetic`], [`LEVEL_FAST`](crate::LEVEL_FAST) or
    /// [`LEVEL_BEST`](crate::LEVEL_BEST); of [`Codec::Zstd`], 1 to 22; of others, 0.
    pub level: i32,
    /// Planes are whole bytes; only for [`Codec::Split`].
    pub by_byte: bool,
    /// Store the 4 bytes a block that tell damage.
    pub checksums: bool,
    /// Equally long versions in the buffer, 1 to 65534, each coded against an earlier one.
    pub steps: u32,
    /// Encode without steps where that is smaller.
    pub may_drop_steps: bool,
    /// Items in a block, a power of two; 0 for the default, blocks of 512 KiB.
    pub block_items: u64,
    /// Items in a row of the array; 0 if that is not known.
    pub row: u64,
    /// As many bytes as there are to encode: the frame has differences to them.
    pub base: Option<&'a [u8]>,
    /// For [`Codec::Zstd`].
    pub zstd: Option<&'a dyn Zstandard>,
    /// Look for weights that were quantised once, and write their levels and scales.
    pub grids: bool,
}

impl Default for EncodeOptions<'_> {
    fn default() -> Self {
        Self {
            codec: Codec::Huffman,
            dtype: Dtype::Bfloat16,
            level: 0,
            by_byte: false,
            checksums: true,
            steps: 1,
            may_drop_steps: false,
            block_items: 0,
            row: 0,
            base: None,
            zstd: None,
            grids: true,
        }
    }
}

impl EncodeOptions<'_> {
    /// Calls a function with these options as the library has them.
    fn with<T>(&self, function: impl FnOnce(&ffi::EncodeOptions) -> T) -> T {
        let zstd = self.zstd.as_ref().map(table);
        function(&ffi::EncodeOptions {
            struct_size: size_of::<ffi::EncodeOptions>(),
            codec: self.codec as c_int,
            dtype: self.dtype as c_int,
            level: self.level,
            by_byte: self.by_byte.into(),
            no_checksums: (!self.checksums).into(),
            may_drop_steps: self.may_drop_steps.into(),
            steps: self.steps,
            block_items: self.block_items,
            row: self.row,
            base: self.base.map_or(ptr::null(), |base| base.as_ptr().cast()),
            zstd: zstd.as_ref().map_or(ptr::null(), ptr::from_ref),
            no_grids: (!self.grids).into(),
        })
    }
}

/// The largest size of a frame of `raw_size` bytes.
///
/// # Errors
///
/// If the options have no meaning, or not for so many bytes.
pub fn encode_room(raw_size: u64, options: &EncodeOptions) -> Result<u64> {
    let mut room = 0;
    options.with(|options| {
        // SAFETY: all pointers are of values that live during the call.
        call(|error| unsafe { ffi::bf16codecs_encode_room(raw_size, options, &mut room, error) })
    })?;
    Ok(room)
}

/// Encodes bytes to a frame, which depends on them and the options alone.
///
/// # Errors
///
/// If the options have no meaning, or there is no memory.
pub fn encode(raw: &[u8], options: &EncodeOptions) -> Result<Vec<u8>> {
    if let Some(base) = options.base.filter(|base| base.len() != raw.len()) {
        return Err(Error::InvalidArgument(format!(
            "the base has {} bytes, and what is encoded {}",
            base.len(),
            raw.len()
        )));
    }
    let room = encode_room(raw.len() as u64, options)?;
    let write = |out: *mut u8, capacity, size: &mut usize| {
        options.with(|options| {
            // SAFETY: lengths go with their pointers, which are of memory that lives during the
            // call; the base has as many bytes as there are to encode.
            call(|error| unsafe {
                ffi::bf16codecs_encode(
                    raw.as_ptr().cast(),
                    raw.len(),
                    options,
                    out.cast(),
                    capacity,
                    size,
                    error,
                )
            })
        })
    };
    // SAFETY: the library writes so many bytes, and nothing outside of the room that it is given.
    let mut frame = unsafe { filled(room, write) }?;
    frame.shrink_to_fit();
    Ok(frame)
}
