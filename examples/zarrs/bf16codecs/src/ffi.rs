//! The C interface, as `bf16codecs.h` declares it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::ptr;

pub(crate) const OK: c_int = 0;
pub(crate) const NO_PARENT: u64 = u64::MAX;
pub(crate) const OUTSIDE: u64 = u64::MAX - 1;
pub(crate) const MAX_ITEM_SIZE: usize = 8;

#[repr(C)]
pub(crate) struct Error {
    pub(crate) status: c_int,
    pub(crate) message: [c_char; 508],
}

#[repr(C)]
pub(crate) struct Zstd {
    pub(crate) struct_size: usize,
    pub(crate) user: *mut c_void,
    pub(crate) compress: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            plane: *const c_void,
            n: usize,
            level: c_int,
            out: *mut c_void,
            capacity: usize,
        ) -> usize,
    >,
    pub(crate) decompress: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            payload: *const c_void,
            size: usize,
            plane: *mut c_void,
            n: usize,
        ) -> c_int,
    >,
}

#[repr(C)]
pub(crate) struct EncodeOptions {
    pub(crate) struct_size: usize,
    pub(crate) codec: c_int,
    pub(crate) dtype: c_int,
    pub(crate) level: c_int,
    pub(crate) by_byte: c_int,
    pub(crate) no_checksums: c_int,
    pub(crate) may_drop_steps: c_int,
    pub(crate) steps: c_uint,
    pub(crate) block_items: u64,
    pub(crate) row: u64,
    pub(crate) base: *const c_void,
    pub(crate) zstd: *const Zstd,
    pub(crate) no_grids: c_int,
}

#[repr(C)]
pub(crate) struct DecodeOptions {
    pub(crate) struct_size: usize,
    pub(crate) base: *const c_void,
    pub(crate) base_size: usize,
    pub(crate) padded: c_int,
    pub(crate) zstd: *const Zstd,
}

#[repr(C)]
pub(crate) struct Info {
    pub(crate) struct_size: usize,
    pub(crate) version: c_int,
    pub(crate) codec: c_int,
    pub(crate) dtype: c_int,
    pub(crate) by_byte: c_int,
    pub(crate) has_checksums: c_int,
    pub(crate) needs_base: c_int,
    pub(crate) steps: c_uint,
    pub(crate) room: c_uint,
    pub(crate) item_size: u64,
    pub(crate) raw_size: u64,
    pub(crate) padded_size: u64,
    pub(crate) frame_size: u64,
    pub(crate) head_size: u64,
    pub(crate) block_items: u64,
    pub(crate) blocks: u64,
    pub(crate) base_digest: u64,
}

#[repr(C)]
pub(crate) struct Block {
    pub(crate) struct_size: usize,
    pub(crate) items: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) raw_offset: u64,
    pub(crate) raw_size: u64,
    pub(crate) parent: u64,
    pub(crate) has_checksum: c_int,
    pub(crate) checksum: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Plane {
    pub(crate) mode: c_int,
    pub(crate) size: usize,
}

#[repr(C)]
pub(crate) struct VersionInfo {
    pub(crate) struct_size: usize,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) parent: u64,
}

/// An open frame, which only the library looks into.
#[repr(C)]
pub(crate) struct Frame {
    _opaque: [u8; 0],
}

/// An open directory, likewise.
#[repr(C)]
pub(crate) struct Growing {
    _opaque: [u8; 0],
}

// What the macros of the header set.
impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            struct_size: size_of::<Self>(),
            base: ptr::null(),
            base_size: 0,
            padded: 0,
            zstd: ptr::null(),
        }
    }
}

/// A structure for results: zeros, but for its size.
pub(crate) trait Empty {
    fn empty() -> Self;
}

macro_rules! empty {
    ($($name:ident)*) => {$(
        impl Empty for $name {
            fn empty() -> Self {
                // SAFETY: it has integers alone, for which zeros are values.
                let mut all: Self = unsafe { std::mem::zeroed() };
                all.struct_size = size_of::<Self>();
                all
            }
        }
    )*};
}
empty!(Info Block VersionInfo);

extern "C" {
    pub(crate) fn bf16codecs_version() -> *const c_char;
    pub(crate) fn bf16codecs_active_isa() -> *const c_char;
    pub(crate) fn bf16codecs_codec_name(codec: c_int) -> *const c_char;
    pub(crate) fn bf16codecs_dtype_name(dtype: c_int) -> *const c_char;
    pub(crate) fn bf16codecs_mode_name(mode: c_int) -> *const c_char;

    pub(crate) fn bf16codecs_encode_room(
        raw_size: u64,
        options: *const EncodeOptions,
        room: *mut u64,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_encode(
        raw: *const c_void,
        raw_size: usize,
        options: *const EncodeOptions,
        frame: *mut c_void,
        capacity: usize,
        frame_size: *mut usize,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_decode(
        frame: *const c_void,
        frame_size: usize,
        options: *const DecodeOptions,
        out: *mut c_void,
        capacity: usize,
        raw_size: *mut usize,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_inspect(
        frame: *const c_void,
        frame_size: usize,
        info: *mut Info,
        error: *mut Error,
    ) -> c_int;

    pub(crate) fn bf16codecs_head_size(
        prefix: *const c_void,
        size: usize,
        head_size: *mut u64,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_open(
        head: *const c_void,
        size: usize,
        frame: *mut *mut Frame,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_close(frame: *mut Frame);
    pub(crate) fn bf16codecs_frame_info(
        frame: *const Frame,
        info: *mut Info,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_block_info(
        frame: *const Frame,
        number: u64,
        block: *mut Block,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_block_planes(
        frame: *const Frame,
        number: u64,
        block: *const c_void,
        size: usize,
        planes: *mut Plane,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_decode_blocks(
        frame: *const Frame,
        payload: *const c_void,
        payload_size: usize,
        first: u64,
        last: u64,
        options: *const DecodeOptions,
        out: *mut c_void,
        capacity: usize,
        raw_size: *mut usize,
        error: *mut Error,
    ) -> c_int;

    pub(crate) fn bf16codecs_is_growing(prefix: *const c_void, size: usize) -> c_int;
    pub(crate) fn bf16codecs_growing_open(
        directory: *const c_void,
        size: usize,
        growing: *mut *mut Growing,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_growing_close(growing: *mut Growing);
    pub(crate) fn bf16codecs_growing_info(
        growing: *const Growing,
        info: *mut Info,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_growing_version(
        growing: *const Growing,
        number: u64,
        version: *mut VersionInfo,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_growing_frame(
        growing: *const Growing,
        number: u64,
        head: *const c_void,
        size: usize,
        frame: *mut *mut Frame,
        error: *mut Error,
    ) -> c_int;

    pub(crate) fn bf16codecs_rle_bound(raw_size: u64) -> u64;
    pub(crate) fn bf16codecs_rle_encode(
        raw: *const c_void,
        raw_size: usize,
        encoded: *mut c_void,
        capacity: usize,
        encoded_size: *mut usize,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_rle_decoded_size(
        encoded: *const c_void,
        encoded_size: usize,
        raw_size: *mut u64,
        error: *mut Error,
    ) -> c_int;
    pub(crate) fn bf16codecs_rle_decode(
        encoded: *const c_void,
        encoded_size: usize,
        out: *mut c_void,
        capacity: usize,
        raw_size: *mut usize,
        error: *mut Error,
    ) -> c_int;
}
