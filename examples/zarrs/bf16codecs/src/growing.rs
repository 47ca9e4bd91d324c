//! Growing frames: a directory, and behind it a frame for each version.

use crate::decode::Info;
use crate::error::{call, Result};
use crate::ffi::{self, Empty};
use crate::frame::Frame;

/// Whether a frame is a growing one, by its first bytes.
#[must_use]
pub fn is_growing(prefix: &[u8]) -> bool {
    // SAFETY: the length goes with its pointer.
    unsafe { ffi::bf16codecs_is_growing(prefix.as_ptr().cast(), prefix.len()) != 0 }
}

/// Where a version of a growing frame is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Version {
    /// Where its frame is in the growing one.
    pub offset: u64,
    /// How many bytes that has.
    pub size: u64,
    /// The version that is its base.
    pub parent: Option<u64>,
}

/// The directory of a growing frame.
#[derive(Clone, Copy, Debug)]
pub struct Growing<'a> {
    directory: &'a [u8],
}

impl<'a> Growing<'a> {
    /// The directory whose bytes, or more, are the first ones of a growing frame. They are looked at
    /// with each call.
    #[must_use]
    pub fn new(directory: &'a [u8]) -> Self {
        Self { directory }
    }

    /// What the directory says.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn info(&self) -> Result<Info> {
        let mut told = ffi::Info::empty();
        let (start, size) = (self.directory.as_ptr().cast(), self.directory.len());
        // SAFETY: the length goes with its pointer, and the results are values of this function.
        call(|error| unsafe { ffi::bf16codecs_growing_info(start, size, &mut told, error) })?;
        Info::of(&told)
    }

    /// Tells where a version is.
    ///
    /// # Errors
    ///
    /// If it is not a directory, or there is no such version.
    pub fn version(&self, number: u64) -> Result<Version> {
        let mut told = ffi::GrowingVersion::empty();
        let (start, size) = (self.directory.as_ptr().cast(), self.directory.len());
        // SAFETY: the length goes with its pointer, and the results are values of this function.
        call(|error| unsafe {
            ffi::bf16codecs_growing_find(start, size, number, &mut told, error)
        })?;
        Ok(Version {
            offset: told.offset,
            size: told.size,
            parent: (told.parent != ffi::NO_PARENT).then_some(told.parent),
        })
    }

    /// Opens a version's frame, of which these are the first bytes, and compares it with the
    /// directory.
    ///
    /// # Errors
    ///
    /// If there is no such version, or it is not that.
    pub fn open(&self, number: u64, head: &[u8]) -> Result<Frame> {
        let (start, size) = (self.directory.as_ptr().cast(), self.directory.len());
        // SAFETY: lengths go with their pointers.
        Frame::opened_by(|frame, error| unsafe {
            ffi::bf16codecs_growing_open(
                start,
                size,
                number,
                head.as_ptr().cast(),
                head.len(),
                frame,
                error,
            )
        })
    }
}
