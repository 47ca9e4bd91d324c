//! The codecs of `bf16codecs` for the Zarr library `zarrs`.
//!
//! [`register`] makes `zarrs` know them by name:
//!
//! | codec | kind | in |
//! |---|---|---|
//! | `bf16codecs.blocks` | array to bytes; parts of a chunk are read by ranges | Zarr 3 |
//! | `bf16codecs.split`, `.huffman`, `.arithmetic`, `.zstd` | bytes to bytes | Zarr 3 and 2 |
//! | `bf16codecs.rle` | bytes to bytes | Zarr 3 and 2 |
//!
//! Arrays are then opened, and created, as with the codecs of `zarrs`. Of a chunk of
//! `bf16codecs.blocks`, reading a part fetches the head of its frame and the blocks that it touches.
//!
//! ```
//! use std::sync::Arc;
//!
//! use zarrs::array::{data_type, Array, ArrayBuilder, ArraySubset, ZARR_NAN_F32};
//! use zarrs::storage::store::MemoryStore;
//!
//! bf16codecs_zarrs::register();
//!
//! // Written with rows in chunks of one frame each.
//! let store = Arc::new(MemoryStore::new());
//! let codec = bf16codecs::Codec::Arithmetic;
//! let codec = bf16codecs_zarrs::BlocksCodec::new(bf16codecs_zarrs::Configuration::of_codec(codec));
//! ArrayBuilder::new(vec![1000, 600], vec![500, 600], data_type::float32(), ZARR_NAN_F32)
//!     .array_to_bytes_codec(Arc::new(codec))
//!     .build(store.clone(), "/weight")?
//!     .store_metadata()?;
//! let array = Array::open(store.clone(), "/weight")?;
//! array.store_array_subset(&array.subset_all(), vec![1.5_f32; 600_000])?;
//!
//! // Read like any array.
//! let row: Vec<f32> = array.retrieve_array_subset(&ArraySubset::new_with_ranges(&[7..8, 0..600]))?;
//! assert_eq!(row, [1.5; 600]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Frames of `bf16codecs.zstd` need the feature `zstd`. Differences to a base that is outside of the
//! store's chunks, and the codec `bf16codecs.delta`, are refused.

mod blocks;
mod bytes;
mod configuration;
mod numbers;
mod partial;

use std::sync::{Arc, Once};

use zarrs::array::codec::api::{
    register_codec_v2, register_codec_v3, Codec, CodecError, CodecRuntimePluginV2,
    CodecRuntimePluginV3,
};
use zarrs::metadata::v2::MetadataV2;
use zarrs::metadata::v3::MetadataV3;

pub use blocks::BlocksCodec;
pub use bytes::{FrameCodec, RunLengthCodec};
pub use configuration::Configuration;

/// Makes `zarrs` know the codecs, for all arrays that are opened or created from then on. To call it
/// more than once does nothing else.
pub fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == blocks::NAME,
            |metadata: &MetadataV3| {
                let given = metadata.configuration().cloned().unwrap_or_default();
                Ok(Codec::ArrayToBytes(Arc::new(BlocksCodec::of_metadata(&given.into())?)))
            },
        ));
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| Configuration::codec_of_name(name).is_some(),
            |metadata: &MetadataV3| {
                let given = metadata.configuration().cloned().unwrap_or_default();
                let configuration = Configuration::of_metadata(metadata.name(), &given.into())?;
                Ok(Codec::BytesToBytes(Arc::new(FrameCodec { configuration })))
            },
        ));
        register_codec_v2(CodecRuntimePluginV2::new(
            |name| Configuration::codec_of_name(name).is_some(),
            |metadata: &MetadataV2| {
                let given = metadata.configuration().clone().into();
                let configuration = Configuration::of_metadata_v2(metadata.id(), &given)?;
                Ok(Codec::BytesToBytes(Arc::new(FrameCodec { configuration })))
            },
        ));
        register_codec_v3(CodecRuntimePluginV3::new(
            |name| name == bytes::RUN_LENGTH_NAME,
            |metadata: &MetadataV3| {
                let given = metadata.configuration().cloned().unwrap_or_default();
                configuration::check_empty(bytes::RUN_LENGTH_NAME, &given.into())?;
                Ok(Codec::BytesToBytes(Arc::new(RunLengthCodec)))
            },
        ));
        register_codec_v2(CodecRuntimePluginV2::new(
            |name| name == bytes::RUN_LENGTH_NAME,
            |metadata: &MetadataV2| {
                let given = metadata.configuration().clone().into();
                configuration::check_empty(bytes::RUN_LENGTH_NAME, &given)?;
                Ok(Codec::BytesToBytes(Arc::new(RunLengthCodec)))
            },
        ));
    });
}

/// What is wrong with a chunk, as `zarrs` has it.
fn codec_error(error: &bf16codecs::Error) -> CodecError {
    CodecError::Other(format!("bf16codecs: {error}"))
}

/// The system's libzstd, if this build has it.
fn zstandard() -> Option<&'static dyn bf16codecs::Zstandard> {
    #[cfg(feature = "zstd")]
    return Some(&bf16codecs::SystemZstd);
    #[cfg(not(feature = "zstd"))]
    None
}
