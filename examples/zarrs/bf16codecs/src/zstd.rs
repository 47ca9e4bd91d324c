//! Zstandard, which the library leaves to its caller.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

use crate::ffi;

/// A Zstandard library, for frames of [`Codec::Zstd`](crate::Codec::Zstd).
///
/// A panic in one of its functions is a failure of the call, and goes no further: between them and
/// the caller is C++.
pub trait Zstandard {
    /// Compresses a plane to `out`, and returns the size, or `None` where it is too small.
    fn compress(&self, plane: &[u8], level: i32, out: &mut [u8]) -> Option<usize>;

    /// Decompresses one Zstandard frame, which states a content of `plane.len()` bytes; returns
    /// whether it was sound.
    fn decompress(&self, payload: &[u8], plane: &mut [u8]) -> bool;
}

/// The functions that the C library calls, for as long as `zstd` is borrowed.
pub(crate) fn table(zstd: &&dyn Zstandard) -> ffi::Zstd {
    ffi::Zstd {
        struct_size: size_of::<ffi::Zstd>(),
        user: std::ptr::from_ref(zstd).cast_mut().cast(),
        compress: Some(compress),
        decompress: Some(decompress),
    }
}

/// # Safety
///
/// `user` is from [`table`], whose argument is still borrowed, on this thread; there are `n` bytes
/// at `plane`, and room for `capacity` at `out`.
unsafe extern "C" fn compress(
    user: *mut c_void,
    plane: *const c_void,
    n: usize,
    level: c_int,
    out: *mut c_void,
    capacity: usize,
) -> usize {
    // SAFETY: as the caller promises.
    let (zstd, plane, out) = unsafe {
        let zstd: &dyn Zstandard = *user.cast::<&dyn Zstandard>();
        (zstd, bytes(plane, n), room(out, capacity))
    };
    let done = catch_unwind(AssertUnwindSafe(|| zstd.compress(plane, level, out)));
    done.ok().flatten().unwrap_or(0)
}

/// # Safety
///
/// `user` is from [`table`], whose argument is still borrowed, on this thread; there are `size` bytes
/// at `payload`, and room for `n` at `plane`.
unsafe extern "C" fn decompress(
    user: *mut c_void,
    payload: *const c_void,
    size: usize,
    plane: *mut c_void,
    n: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let (zstd, payload, plane) = unsafe {
        let zstd: &dyn Zstandard = *user.cast::<&dyn Zstandard>();
        (zstd, bytes(payload, size), room(plane, n))
    };
    let done = catch_unwind(AssertUnwindSafe(|| zstd.decompress(payload, plane)));
    c_int::from(!matches!(done, Ok(true)))
}

/// # Safety
///
/// There are `n` bytes, which nobody changes during `'a`.
unsafe fn bytes<'a>(start: *const c_void, n: usize) -> &'a [u8] {
    if n == 0 {
        return &[]; // whose address may be null
    }
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts(start.cast(), n) }
}

/// # Safety
///
/// There are `n` bytes, which nobody else uses during `'a`. They may be uninitialized.
unsafe fn room<'a>(start: *mut c_void, n: usize) -> &'a mut [u8] {
    if n == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises; and a slice is of initialized bytes.
    unsafe {
        start.cast::<u8>().write_bytes(0, n);
        slice::from_raw_parts_mut(start.cast(), n)
    }
}

/// The system's libzstd.
#[cfg(feature = "zstd")]
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemZstd;

#[cfg(feature = "zstd")]
mod system {
    use super::{c_int, c_void, SystemZstd, Zstandard};

    #[link(name = "zstd")]
    extern "C" {
        fn ZSTD_compress(
            out: *mut c_void,
            capacity: usize,
            plane: *const c_void,
            n: usize,
            level: c_int,
        ) -> usize;
        fn ZSTD_decompress(
            plane: *mut c_void,
            n: usize,
            payload: *const c_void,
            size: usize,
        ) -> usize;
        fn ZSTD_isError(code: usize) -> u32;
    }

    impl Zstandard for SystemZstd {
        fn compress(&self, plane: &[u8], level: i32, out: &mut [u8]) -> Option<usize> {
            // SAFETY: pointers and lengths are of slices; the other is of a number.
            unsafe {
                let size = ZSTD_compress(
                    out.as_mut_ptr().cast(),
                    out.len(),
                    plane.as_ptr().cast(),
                    plane.len(),
                    level,
                );
                (ZSTD_isError(size) == 0).then_some(size)
            }
        }

        fn decompress(&self, payload: &[u8], plane: &mut [u8]) -> bool {
            // SAFETY: pointers and lengths are of slices.
            let size = unsafe {
                ZSTD_decompress(
                    plane.as_mut_ptr().cast(),
                    plane.len(),
                    payload.as_ptr().cast(),
                    payload.len(),
                )
            };
            size == plane.len()
        }
    }
}
