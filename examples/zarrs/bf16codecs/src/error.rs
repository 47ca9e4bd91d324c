//! What can go wrong, as the library says it.

use std::ffi::{c_char, c_int, CStr};
use std::fmt;

use crate::ffi;

/// Why a call failed, with a line of text that says what was wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not a frame, or a damaged one.
    Corrupt(String),
    /// It ends too early.
    Truncated(String),
    /// The base is missing, or another one.
    BaseMismatch(String),
    /// The frame has a version of the format that a newer release may know.
    UnsupportedVersion(String),
    /// A plane of Zstandard, and no decompressor was given.
    Unsupported(String),
    /// What was asked for cannot be.
    InvalidArgument(String),
    /// The memory for the result is too small.
    NoRoom(String),
    /// There is no memory, or no other resource of the system.
    NoMemory(String),
    /// A status that a later release of the library has.
    Other(i32, String),
}

/// What calls return.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The line of text.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Corrupt(text)
            | Self::Truncated(text)
            | Self::BaseMismatch(text)
            | Self::UnsupportedVersion(text)
            | Self::Unsupported(text)
            | Self::InvalidArgument(text)
            | Self::NoRoom(text)
            | Self::NoMemory(text)
            | Self::Other(_, text) => text,
        }
    }

    fn of_status(status: c_int, text: String) -> Self {
        match status {
            1 => Self::Corrupt(text),
            2 => Self::Truncated(text),
            3 => Self::BaseMismatch(text),
            4 => Self::UnsupportedVersion(text),
            5 => Self::Unsupported(text),
            6 => Self::InvalidArgument(text),
            7 => Self::NoRoom(text),
            8 => Self::NoMemory(text),
            other => Self::Other(other, text),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.message())
    }
}

impl std::error::Error for Error {}

/// Calls a function of the library with room for what it has to say.
pub(crate) fn call(function: impl FnOnce(*mut ffi::Error) -> c_int) -> Result<()> {
    let mut said = ffi::Error { status: ffi::OK, message: [0; 508] };
    let status = function(&mut said);
    if status == ffi::OK {
        return Ok(());
    }
    let bytes = said.message.map(|byte: c_char| byte.to_ne_bytes()[0]);
    let text = CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default();
    Err(Error::of_status(status, text))
}

/// An empty vector with room for `size` bytes, or an error where there is no memory.
pub(crate) fn memory(size: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    usize::try_from(size)
        .ok()
        .and_then(|size| bytes.try_reserve_exact(size).ok())
        .ok_or_else(|| Error::NoMemory(format!("no memory for {size} bytes")))?;
    Ok(bytes)
}

/// Lets `write` fill a vector of at most `size` bytes.
///
/// # Safety
///
/// If `write(out, capacity, &mut written)` returns `Ok`, it has written the first `written` bytes of
/// `out`, and no byte from `out + capacity` on in any case.
pub(crate) unsafe fn filled(
    size: u64,
    write: impl FnOnce(*mut u8, usize, &mut usize) -> Result<()>,
) -> Result<Vec<u8>> {
    let mut out = memory(size)?;
    let capacity = out.capacity();
    let mut written = 0;
    write(out.as_mut_ptr(), capacity, &mut written)?;
    assert!(written <= capacity, "the library wrote more than there is room for");
    // SAFETY: so many bytes are there, and the caller's function has written them.
    unsafe { out.set_len(written) };
    Ok(out)
}
