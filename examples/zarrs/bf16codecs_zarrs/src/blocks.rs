//! The codec `bf16codecs.blocks`: a chunk as one frame, of which parts can be read.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

use bf16codecs::{encode, encode_room, inspect, Codec, DecodeOptions};
use serde_json::{json, Map, Value};
use zarrs::array::codec::api::{
    ArrayBytes, ArrayBytesRaw, ArrayCodecTraits, ArrayPartialDecoderTraits,
    ArrayToBytesCodecTraits, BytesPartialDecoderTraits, BytesRepresentation, CodecError,
    CodecMetadataOptions, CodecOptions, CodecTraits, InvalidBytesLengthError,
    PartialDecoderCapability, PartialEncoderCapability, RecommendedConcurrency,
};
use zarrs::array::codec::BytesDataTypeExt;
use zarrs::array::{DataType, Endianness, FillValue};
use zarrs::plugin::{ExtensionName, PluginCreateError, ZarrVersion};

use crate::configuration::Configuration;
use crate::numbers::{chunk_bytes, dtype_of, item_size};
use crate::partial::BlocksPartialDecoder;
use crate::{codec_error, zstandard};

pub(crate) const NAME: &str = "bf16codecs.blocks";

/// Stores a chunk as one frame: its items in C order, little-endian.
#[derive(Clone, Debug)]
pub struct BlocksCodec {
    configuration: Configuration,
}

impl BlocksCodec {
    /// The codec that encodes chunks with these parameters.
    #[must_use]
    pub fn new(configuration: Configuration) -> Self {
        Self { configuration }
    }

    /// Reads what array metadata have under [`NAME`].
    pub(crate) fn of_metadata(given: &Map<String, Value>) -> Result<Self, PluginCreateError> {
        if let Some(key) = given.keys().find(|key| *key != "codec") {
            return Err(format!("{NAME}: there is no {key:?}").into());
        }
        let Some(codec) = given.get("codec") else {
            return Ok(Self::new(Configuration::of_codec(Codec::Huffman)));
        };
        let mut keys = codec.as_object().into_iter().flat_map(Map::keys);
        if let Some(key) = keys.find(|key| *key != "name" && *key != "configuration") {
            return Err(format!("{NAME}: its codec has no {key:?}").into());
        }
        let name = codec.get("name").or(Some(codec)).and_then(Value::as_str);
        let name = name.ok_or_else(|| format!("{NAME}: {codec} is no codec"))?;
        let configuration = match codec.get("configuration") {
            Some(Value::Object(given)) => Configuration::of_metadata(name, given)?,
            None => Configuration::codec_of_name(name)
                .map(Configuration::of_codec)
                .ok_or_else(|| format!("{NAME}: there is no codec {name:?} of bf16codecs"))?,
            Some(other) => return Err(format!("{NAME}: {other} is no configuration").into()),
        };
        Ok(Self::new(configuration))
    }

    fn for_array(&self, data_type: &DataType) -> Configuration {
        self.configuration.for_dtype(dtype_of(data_type))
    }
}

/// Items in native byte order, of those of a stored chunk.
pub(crate) fn to_native<'a>(
    items: Cow<'a, [u8]>,
    data_type: &DataType,
) -> Result<ArrayBytes<'a>, CodecError> {
    let little = Some(Endianness::Little);
    let decoded = data_type.codec_bytes()?.decode(items, little);
    Ok(ArrayBytes::from(decoded.map_err(CodecError::from)?))
}

/// Decodes a whole chunk, of which a growing frame may have a part alone.
pub(crate) fn decode_chunk(frame: &[u8], nbytes: u64) -> Result<Vec<u8>, CodecError> {
    let info = inspect(frame).map_err(|error| codec_error(&error))?;
    if info.padded_size != nbytes {
        let sizes =
            [info.padded_size, nbytes].map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        return Err(InvalidBytesLengthError::new(sizes[0], sizes[1]).into());
    }
    let options = DecodeOptions { padded: true, zstd: zstandard(), ..DecodeOptions::default() };
    bf16codecs::decode(frame, &options).map_err(|error| codec_error(&error))
}

impl ExtensionName for BlocksCodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        (version == ZarrVersion::V3).then_some(Cow::Borrowed(NAME))
    }
}

impl CodecTraits for BlocksCodec {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn configuration(
        &self,
        _version: ZarrVersion,
        _options: &CodecMetadataOptions,
    ) -> Option<zarrs::metadata::Configuration> {
        let mut codec = json!({"name": self.configuration.name()});
        // Without a configuration, numbers are of the array's data type.
        if !self.configuration.is_auto() {
            codec["configuration"] = Value::Object(self.configuration.to_metadata());
        }
        let mut told = Map::new();
        told.insert("codec".into(), codec);
        Some(told.into())
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: true, partial_decode: true }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl ArrayCodecTraits for BlocksCodec {
    fn recommended_concurrency(
        &self,
        _shape: &[NonZeroU64],
        _data_type: &DataType,
    ) -> Result<RecommendedConcurrency, CodecError> {
        Ok(RecommendedConcurrency::new_maximum(1))
    }
}

impl ArrayToBytesCodecTraits for BlocksCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn ArrayToBytesCodecTraits> {
        self
    }

    fn encoded_representation(
        &self,
        shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
    ) -> Result<BytesRepresentation, CodecError> {
        let options = self.for_array(data_type).options(0);
        let room = encode_room(chunk_bytes(shape, data_type)?, &options);
        Ok(BytesRepresentation::BoundedSize(room.map_err(|error| codec_error(&error))?))
    }

    fn encode<'a>(
        &self,
        bytes: ArrayBytes<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let size = item_size(data_type)?;
        let little = Some(Endianness::Little);
        let items = data_type.codec_bytes()?.encode(bytes.into_fixed()?, little);
        let items = items.map_err(CodecError::from)?;
        let configuration = self.for_array(data_type);
        let row = match shape {
            [_, .., row] => configuration.row_of(row.get(), size, (items.len() / size) as u64),
            _ => 0,
        };
        let frame = encode(&items, &configuration.options(row));
        Ok(Cow::Owned(frame.map_err(|error| codec_error(&error))?))
    }

    fn decode<'a>(
        &self,
        bytes: ArrayBytesRaw<'a>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        _fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<ArrayBytes<'a>, CodecError> {
        let items = decode_chunk(&bytes, chunk_bytes(shape, data_type)?)?;
        to_native(Cow::Owned(items), data_type)
    }

    fn partial_decoder(
        self: Arc<Self>,
        input_handle: Arc<dyn BytesPartialDecoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
        _options: &CodecOptions,
    ) -> Result<Arc<dyn ArrayPartialDecoderTraits>, CodecError> {
        let decoder = BlocksPartialDecoder::new(input_handle, shape, data_type, fill_value)?;
        Ok(Arc::new(decoder))
    }
}
