//! The codecs from bytes to bytes, which decode a whole chunk.

use std::borrow::Cow;
use std::sync::Arc;

use bf16codecs::{
    encode, encode_room, inspect, is_growing, rle_decode, rle_decoded_size, rle_encode, Dtype,
};
use zarrs::array::codec::api::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions,
    CodecOptions, CodecTraits, PartialDecoderCapability, PartialEncoderCapability,
    RecommendedConcurrency,
};
use zarrs::plugin::{ExtensionName, ZarrVersion};

use crate::blocks::decode_chunk;
use crate::codec_error;
use crate::configuration::Configuration;

pub(crate) const RUN_LENGTH_NAME: &str = "bf16codecs.rle";

const WHOLE: PartialDecoderCapability =
    PartialDecoderCapability { partial_read: false, partial_decode: false };

/// Encodes bytes to one frame: `bf16codecs.split`, `.huffman`, `.arithmetic` and `.zstd`.
#[derive(Clone, Debug)]
pub struct FrameCodec {
    pub(crate) configuration: Configuration,
}

impl FrameCodec {
    /// The codec with these parameters. It knows no array: without a data type, numbers are bfloat16.
    #[must_use]
    pub fn new(configuration: &Configuration) -> Self {
        Self { configuration: configuration.for_dtype(Dtype::Bfloat16) }
    }
}

/// Refuses to decode to another size than what comes before the codec has.
fn check_size(size: u64, expected: &BytesRepresentation) -> Result<(), CodecError> {
    let is_right = match expected {
        BytesRepresentation::FixedSize(expected) => size == *expected,
        BytesRepresentation::BoundedSize(most) => size <= *most,
        BytesRepresentation::UnboundedSize => true,
    };
    if is_right {
        return Ok(());
    }
    Err(CodecError::Other(format!("bf16codecs: the chunk claims {size} bytes, and has {expected}")))
}

impl ExtensionName for FrameCodec {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Owned(self.configuration.name()))
    }
}

impl CodecTraits for FrameCodec {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn configuration(
        &self,
        _version: ZarrVersion,
        _options: &CodecMetadataOptions,
    ) -> Option<zarrs::metadata::Configuration> {
        Some(self.configuration.to_metadata().into())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        WHOLE
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl BytesToBytesCodecTraits for FrameCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        _decoded_representation: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encoded_representation(
        &self,
        decoded_representation: &BytesRepresentation,
    ) -> BytesRepresentation {
        let room = decoded_representation
            .size()
            .and_then(|size| encode_room(size, &self.configuration.options(0)).ok());
        room.map_or(BytesRepresentation::UnboundedSize, BytesRepresentation::BoundedSize)
    }

    fn encode<'a>(
        &self,
        decoded_value: ArrayBytesRaw<'a>,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        if self.configuration.is_auto() {
            let name = self.configuration.name();
            let why = format!("{name}: zarrs tells it no data type: put one in place of \"auto\"");
            return Err(CodecError::Other(why));
        }
        let frame = encode(&decoded_value, &self.configuration.options(0));
        Ok(Cow::Owned(frame.map_err(|error| codec_error(&error))?))
    }

    fn decode<'a>(
        &self,
        encoded_value: ArrayBytesRaw<'a>,
        decoded_representation: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let info = inspect(&encoded_value).map_err(|error| codec_error(&error))?;
        check_size(info.padded_size, decoded_representation)?;
        if is_growing(&encoded_value)
            && !matches!(decoded_representation, BytesRepresentation::FixedSize(_))
        {
            // A few bytes claim many versions.
            let why = "bf16codecs: a growing frame where a chunk may have any size";
            return Err(CodecError::Other(why.to_owned()));
        }
        Ok(Cow::Owned(decode_chunk(&encoded_value, info.padded_size)?))
    }
}

/// Shortens runs of equal bytes: `bf16codecs.rle`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunLengthCodec;

impl ExtensionName for RunLengthCodec {
    fn name(&self, _version: ZarrVersion) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(RUN_LENGTH_NAME))
    }
}

impl CodecTraits for RunLengthCodec {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn configuration(
        &self,
        _version: ZarrVersion,
        _options: &CodecMetadataOptions,
    ) -> Option<zarrs::metadata::Configuration> {
        Some(zarrs::metadata::Configuration::default())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        WHOLE
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl BytesToBytesCodecTraits for RunLengthCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        _decoded_representation: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }

    fn encoded_representation(
        &self,
        decoded_representation: &BytesRepresentation,
    ) -> BytesRepresentation {
        // Bytes grow by half at most.
        let most = decoded_representation.size().and_then(|n| n.checked_add(n.div_ceil(2)));
        most.map_or(BytesRepresentation::UnboundedSize, BytesRepresentation::BoundedSize)
    }

    fn encode<'a>(
        &self,
        decoded_value: ArrayBytesRaw<'a>,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        Ok(Cow::Owned(rle_encode(&decoded_value).map_err(|error| codec_error(&error))?))
    }

    fn decode<'a>(
        &self,
        encoded_value: ArrayBytesRaw<'a>,
        decoded_representation: &BytesRepresentation,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let size = rle_decoded_size(&encoded_value).map_err(|error| codec_error(&error))?;
        check_size(size, decoded_representation)?;
        Ok(Cow::Owned(rle_decode(&encoded_value).map_err(|error| codec_error(&error))?))
    }
}
