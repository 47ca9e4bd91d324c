//! Numbers of the format, and their names, which are Python's.

use std::ffi::{c_char, c_int, CStr};

use crate::error::{Error, Result};
use crate::ffi;

/// What encoded a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Byte planes, no compression.
    Split = 1,
    /// Huffman codes for the planes where they pay.
    Huffman = 2,
    /// Range coding.
    Arithmetic = 3,
    /// Zstandard on each plane.
    Zstd = 4,
    /// A directory of frames, each of its own codec: [`Growing`](crate::Growing).
    Growing = 16,
}

/// How the bytes of a number become planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // The names say all.
pub enum Dtype {
    Bfloat16 = 0,
    Float16 = 1,
    Float32 = 2,
    Float64 = 3,
    Float8E4m3fn = 4,
    Float8E5m2 = 5,
}

/// The level of [`Codec::Arithmetic`] that is as fast as memory.
pub const LEVEL_FAST: i32 = 0;
/// The level of [`Codec::Arithmetic`] that makes the smallest frames.
pub const LEVEL_BEST: i32 = 1;

impl Codec {
    const ALL: [Self; 5] =
        [Self::Split, Self::Huffman, Self::Arithmetic, Self::Zstd, Self::Growing];

    pub(crate) fn of_number(number: c_int) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|codec| *codec as c_int == number);
        found.ok_or_else(|| unknown("codec", number))
    }

    /// Its name, such as "huffman".
    #[must_use]
    pub fn name(self) -> &'static str {
        // SAFETY: it takes any number.
        text(unsafe { ffi::bf16codecs_codec_name(self as c_int) }).unwrap_or("unknown")
    }

    /// The codec of a name, such as "huffman".
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name)
    }
}

impl Dtype {
    const ALL: [Self; 6] = [
        Self::Bfloat16,
        Self::Float16,
        Self::Float32,
        Self::Float64,
        Self::Float8E4m3fn,
        Self::Float8E5m2,
    ];

    pub(crate) fn of_number(number: c_int) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dtype| *dtype as c_int == number);
        found.ok_or_else(|| unknown("dtype", number))
    }

    /// Its name, such as "bfloat16".
    #[must_use]
    pub fn name(self) -> &'static str {
        // SAFETY: it takes any number.
        text(unsafe { ffi::bf16codecs_dtype_name(self as c_int) }).unwrap_or("unknown")
    }

    /// Size of an item in bytes.
    #[must_use]
    pub fn item_size(self) -> usize {
        match self {
            Self::Float8E4m3fn | Self::Float8E5m2 => 1,
            Self::Bfloat16 | Self::Float16 => 2,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// The data type of a name, such as "bfloat16".
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

/// The release of the C library that is linked, such as "1.2.0".
#[must_use]
pub fn version() -> &'static str {
    // SAFETY: it takes nothing.
    text(unsafe { ffi::bf16codecs_version() }).unwrap_or("unknown")
}

/// The instruction set that it uses, such as "avx512".
#[must_use]
pub fn active_isa() -> &'static str {
    // SAFETY: it takes nothing.
    text(unsafe { ffi::bf16codecs_active_isa() }).unwrap_or("unknown")
}

/// The name of a plane's mode, if this release has one.
pub(crate) fn mode_name(mode: c_int) -> &'static str {
    // SAFETY: it takes any number.
    text(unsafe { ffi::bf16codecs_mode_name(mode) }).unwrap_or("unknown")
}

/// A text of the library's, which are constants.
fn text(address: *const c_char) -> Option<&'static str> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the library returns null, or a text that ends with a zero, and stays as it is.
    unsafe { CStr::from_ptr(address) }.to_str().ok()
}

fn unknown(what: &str, number: c_int) -> Error {
    Error::UnsupportedVersion(format!("{what} {number} is of a later release than this crate"))
}
