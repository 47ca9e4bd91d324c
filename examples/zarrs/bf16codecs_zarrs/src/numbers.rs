//! Data types and shapes of chunks.

use std::num::NonZeroU64;

use bf16codecs::Dtype;
use zarrs::array::codec::api::CodecError;
use zarrs::array::DataType;
use zarrs::plugin::{ExtensionName, ZarrVersion};

/// Size of an item, which the codecs need to be fixed.
pub(crate) fn item_size(data_type: &DataType) -> Result<usize, CodecError> {
    data_type.fixed_size().ok_or_else(|| {
        CodecError::UnsupportedDataType(data_type.clone(), crate::blocks::NAME.to_owned())
    })
}

/// What the numbers of a data type are taken for: for themselves, or others of the same size.
pub(crate) fn dtype_of(data_type: &DataType) -> Dtype {
    let name = data_type.name(ZarrVersion::V3).unwrap_or_default();
    let own = Dtype::of_name(&name);
    own.unwrap_or_else(|| match (name.as_ref(), data_type.fixed_size()) {
        ("complex64", _) => Dtype::Float32,
        (_, Some(1)) => Dtype::Float8E4m3fn,
        (_, Some(4)) => Dtype::Float32,
        (_, Some(8 | 16)) => Dtype::Float64,
        _ => Dtype::Bfloat16,
    })
}

/// Size of a chunk, or an error where that is more than memory can be.
pub(crate) fn chunk_bytes(shape: &[NonZeroU64], data_type: &DataType) -> Result<u64, CodecError> {
    let size = item_size(data_type)? as u64;
    shape
        .iter()
        .try_fold(size, |size, length| size.checked_mul(length.get()))
        .filter(|size| isize::try_from(*size).is_ok())
        .ok_or_else(|| CodecError::Other(format!("a chunk of shape {shape:?} is too large")))
}
