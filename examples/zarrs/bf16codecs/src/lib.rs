//! Lossless compression of floating-point numbers: frames of `bf16codecs`, by its C library.
//!
//! A frame is what the Python package's codecs return, and what a chunk of a Zarr array holds or one
//! of an HDF5 dataset. This crate encodes and decodes frames, whole or by ranges of blocks, and tells
//! what is in them. The bytes, and the verdicts on damaged frames, are those of the Python package.
//!
//! ```
//! use bf16codecs::{decode, encode, DecodeOptions, EncodeOptions};
//!
//! let weights: Vec<u8> = (0..4000_u16).flat_map(|n| (0x3f80 + n % 7).to_le_bytes()).collect();
//! let frame = encode(&weights, &EncodeOptions::default())?;
//! assert!(frame.len() < weights.len());
//! assert_eq!(decode(&frame, &DecodeOptions::default())?, weights);
//! # Ok::<(), bf16codecs::Error>(())
//! ```
//!
//! - **Frames from strangers** may be decoded: nothing outside of the given bytes is read, and what
//!   comes out is what was encoded, or the call fails. How much memory the result takes is told by
//!   [`inspect`]: ask before [`decode`], which allocates what the frame claims.
//! - **Threads**: all functions may be called from several at once, and none starts one. An open
//!   [`Frame`] may be shared: decode ranges of its blocks in threads of your own.
//! - **Zstandard** is not in the library. For frames of [`Codec::Zstd`], give a [`Zstandard`]; the
//!   feature `zstd` has one that calls the system's libzstd.

mod decode;
mod encode;
mod error;
mod ffi;
mod frame;
mod growing;
mod names;
mod run_length;
mod zstd;

pub use decode::{decode, decode_into, inspect, DecodeOptions, Info};
pub use encode::{encode, encode_room, EncodeOptions};
pub use error::{Error, Result};
pub use frame::{head_size, Block, Frame, Parent, Plane, PREFIX_SIZE};
pub use growing::{is_growing, Growing, Version};
pub use names::{active_isa, version, Codec, Dtype, LEVEL_BEST, LEVEL_FAST};
pub use run_length::{rle_decode, rle_decoded_size, rle_encode};
#[cfg(feature = "zstd")]
pub use zstd::SystemZstd;
pub use zstd::Zstandard;
