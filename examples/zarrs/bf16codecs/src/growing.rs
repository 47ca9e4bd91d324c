//! Growing frames: a directory, and behind it a frame for each version.

use std::ptr::{self, NonNull};

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
#[derive(Debug)]
pub struct Growing {
    opened: NonNull<ffi::Growing>,
    info: Info,
}

// SAFETY: what the library opened does not change, has nothing of the thread that opened it, and may
// be used by several threads at once and closed by any: `bf16codecs.h` says so.
unsafe impl Send for Growing {}
// SAFETY: as above.
unsafe impl Sync for Growing {}

impl Drop for Growing {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it any more.
        unsafe { ffi::bf16codecs_growing_close(self.opened.as_ptr()) }
    }
}

/// Closes what was opened where no [`Growing`] comes of it.
struct Opened(*mut ffi::Growing);

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: it is open, or null, and nobody uses it any more.
        unsafe { ffi::bf16codecs_growing_close(self.0) }
    }
}

impl Growing {
    /// Opens the directory whose bytes, or more, are the first ones of a growing frame. They are not
    /// needed any more afterwards.
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn open(directory: &[u8]) -> Result<Self> {
        let (start, size) = (directory.as_ptr().cast(), directory.len());
        let mut opened = Opened(ptr::null_mut());
        // SAFETY: the length goes with its pointer, and the results are values of this function.
        call(|error| unsafe { ffi::bf16codecs_growing_open(start, size, &mut opened.0, error) })?;
        let growing = NonNull::new(opened.0).expect("the library opened it");
        let mut told = ffi::Info::empty();
        // SAFETY: the directory is open, and the results are values of this function.
        call(|error| unsafe { ffi::bf16codecs_growing_info(growing.as_ptr(), &mut told, error) })?;
        let info = Info::of(&told)?;
        opened.0 = ptr::null_mut();
        Ok(Self { opened: growing, info })
    }

    /// What the directory says.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Tells where a version is.
    ///
    /// # Errors
    ///
    /// If there is no such version.
    pub fn version(&self, number: u64) -> Result<Version> {
        let mut told = ffi::VersionInfo::empty();
        // SAFETY: the directory is open, and the results are values of this function.
        call(|error| unsafe {
            ffi::bf16codecs_growing_version(self.opened.as_ptr(), number, &mut told, error)
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
    pub fn frame(&self, number: u64, head: &[u8]) -> Result<Frame> {
        let (start, size) = (head.as_ptr().cast(), head.len());
        // SAFETY: the directory is open, and the length goes with its pointer.
        Frame::opened_by(|frame, error| unsafe {
            ffi::bf16codecs_growing_frame(self.opened.as_ptr(), number, start, size, frame, error)
        })
    }
}
