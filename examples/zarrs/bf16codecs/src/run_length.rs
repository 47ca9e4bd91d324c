//! Run lengths: the codec "bf16codecs.rle", whose bytes are no frames.

use crate::error::{call, filled, Result};
use crate::ffi;

/// Encodes bytes to run lengths.
///
/// # Errors
///
/// If there is no memory.
pub fn rle_encode(raw: &[u8]) -> Result<Vec<u8>> {
    // SAFETY: it takes any number.
    let bound = unsafe { ffi::bf16codecs_rle_bound(raw.len() as u64) };
    let (start, n) = (raw.as_ptr().cast(), raw.len());
    let write = |out: *mut u8, room, size: &mut usize| {
        // SAFETY: lengths go with their pointers.
        call(|error| unsafe { ffi::bf16codecs_rle_encode(start, n, out.cast(), room, size, error) })
    };
    // SAFETY: the library writes so many bytes, and nothing outside of the room that it is given.
    let mut encoded = unsafe { filled(bound, write) }?;
    encoded.shrink_to_fit();
    Ok(encoded)
}

/// How many bytes [`rle_decode`] gives. A few run lengths may be of many.
///
/// # Errors
///
/// If these are no run lengths.
pub fn rle_decoded_size(encoded: &[u8]) -> Result<u64> {
    let mut size = 0;
    // SAFETY: the length goes with its pointer, and the results are values of this function.
    call(|error| unsafe {
        ffi::bf16codecs_rle_decoded_size(encoded.as_ptr().cast(), encoded.len(), &mut size, error)
    })?;
    Ok(size)
}

/// Decodes run lengths.
///
/// # Errors
///
/// If these are none, or there is no memory.
pub fn rle_decode(encoded: &[u8]) -> Result<Vec<u8>> {
    let (start, n) = (encoded.as_ptr().cast(), encoded.len());
    let write = |out: *mut u8, room, size: &mut usize| {
        // SAFETY: lengths go with their pointers.
        call(|error| unsafe { ffi::bf16codecs_rle_decode(start, n, out.cast(), room, size, error) })
    };
    // SAFETY: the library writes so many bytes, and nothing outside of the room that it is given.
    unsafe { filled(rle_decoded_size(encoded)?, write) }
}
