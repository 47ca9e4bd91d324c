//! Parts of chunks: the head of a frame, and the blocks that a part touches.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use bf16codecs::{head_size, is_growing, DecodeOptions, Frame, Parent};
use zarrs::array::codec::api::{
    ArrayBytes, ArrayPartialDecoderTraits, BytesPartialDecoderTraits, CodecError, CodecOptions,
    InvalidBytesLengthError,
};
use zarrs::array::{DataType, FillValue, Indexer, IndexerError};
use zarrs::storage::byte_range::ByteRange;
use zarrs::storage::StorageError;

use crate::blocks::{decode_chunk, to_native};
use crate::numbers::{chunk_bytes, item_size};
use crate::{codec_error, zstandard};

/// Chunks of one block, or less, are read as a whole.
const ONE_BLOCK: u64 = 1 << 19;

/// Reads parts of one stored chunk.
pub(crate) struct BlocksPartialDecoder {
    stored: Arc<dyn BytesPartialDecoderTraits>,
    shape: Vec<u64>,
    data_type: DataType,
    fill_value: FillValue,
    item_size: usize,
    nbytes: u64,
}

/// What is known of a stored chunk after the first request.
enum Begun<'a> {
    /// All of it was read.
    Whole(Cow<'a, [u8]>),
    /// Its blocks can be read.
    Frame(Frame),
}

impl BlocksPartialDecoder {
    pub(crate) fn new(
        stored: Arc<dyn BytesPartialDecoderTraits>,
        shape: &[NonZeroU64],
        data_type: &DataType,
        fill_value: &FillValue,
    ) -> Result<Self, CodecError> {
        Ok(Self {
            stored,
            shape: shape.iter().map(|length| length.get()).collect(),
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
            item_size: item_size(data_type)?,
            nbytes: chunk_bytes(shape, data_type)?,
        })
    }

    /// The items of ranges of the decoded chunk, one after the other; nothing if it is missing.
    fn items(
        &self,
        ranges: &[Range<u64>],
        options: &CodecOptions,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        match self.begin(options)? {
            None => Ok(None),
            Some(Begun::Whole(frame)) => {
                let whole = BTreeMap::from([(0, decode_chunk(&frame, self.nbytes)?)]);
                cut(&whole, ranges).map(Some)
            }
            Some(Begun::Frame(frame)) => {
                cut(&self.decode_touched(&frame, ranges, options)?, ranges).map(Some)
            }
        }
    }

    /// Reads as much as tells where the blocks are.
    fn begin(&self, options: &CodecOptions) -> Result<Option<Begun<'_>>, CodecError> {
        let whole = || Ok(self.stored.decode(options)?.map(Begun::Whole));
        if self.nbytes <= ONE_BLOCK {
            return whole();
        }
        // It holds the head of a frame, whose block table has 8 bytes for each block.
        let first = (self.nbytes >> 15).max(4096);
        let Ok(prefix) = self.fetch(std::iter::once(0..first), options) else {
            return whole(); // it may be shorter
        };
        let Some(mut head) = prefix.map(|mut parts| parts.swap_remove(0)) else {
            return Ok(None);
        };
        if is_growing(&head) {
            return whole();
        }
        let size = head_size(&head).map_err(|error| codec_error(&error))?;
        self.check_stored(size)?;
        if size > first {
            let rest =
                self.fetch(std::iter::once(first..size), options)?.ok_or_else(disappeared)?;
            head.to_mut().extend_from_slice(&rest[0]);
        }
        let frame = Frame::open(&head).map_err(|error| codec_error(&error))?;
        let info = frame.info();
        if info.raw_size != self.nbytes {
            let size = usize::try_from(info.raw_size).unwrap_or(usize::MAX);
            return Err(InvalidBytesLengthError::new(size, self.nbytes as usize).into());
        }
        if info.base_digest.is_some() {
            return Err(damage("the chunk has differences to a base, which zarrs does not give"));
        }
        self.check_stored(info.frame_size)?;
        Ok(Some(Begun::Frame(frame)))
    }

    /// Refuses to read more than a chunk of this size can have.
    fn check_stored(&self, end: u64) -> Result<(), CodecError> {
        if end <= self.nbytes.saturating_mul(2).saturating_add(4096) {
            return Ok(());
        }
        Err(damage(&format!("it claims {end} bytes for a chunk of {}", self.nbytes)))
    }

    /// Reads ranges of the stored chunk.
    fn fetch(
        &self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        options: &CodecOptions,
    ) -> Result<Option<Vec<Cow<'_, [u8]>>>, CodecError> {
        let ranges: Vec<_> = ranges.into_iter().collect();
        let asked: Vec<_> = ranges.iter().cloned().map(ByteRange::new).collect();
        let Some(parts) = self.stored.partial_decode_many(Box::new(asked.into_iter()), options)?
        else {
            return Ok(None);
        };
        let sizes = ranges.iter().map(|range| range.end - range.start);
        if parts.len() != ranges.len() || parts.iter().zip(sizes).any(|(p, n)| p.len() as u64 != n)
        {
            return Err(damage("the store gave other ranges than it was asked for"));
        }
        Ok(Some(parts))
    }

    /// Reads and decodes the blocks that ranges touch, and those that these are coded against.
    /// Returns them by where they begin.
    fn decode_touched(
        &self,
        frame: &Frame,
        ranges: &[Range<u64>],
        options: &CodecOptions,
    ) -> Result<BTreeMap<u64, Vec<u8>>, CodecError> {
        let failed = |error| codec_error(&error);
        let numbers = touched(frame, ranges).map_err(failed)?;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for number in &numbers {
            let block = frame.block(*number).map_err(failed)?;
            match runs.last_mut() {
                Some(run) if run.end == block.offset => run.end += block.size,
                _ => runs.push(block.offset..block.offset + block.size),
            }
        }
        let parts = self.fetch(runs.clone(), options)?.ok_or_else(disappeared)?;
        let mut decoded: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for number in numbers {
            let block = frame.block(number).map_err(failed)?;
            let run = runs.partition_point(|run| run.end <= block.offset).min(runs.len() - 1);
            let start = (block.offset - runs[run].start) as usize;
            let payload = &parts[run][start..][..block.size as usize];
            let base = match block.parent {
                Parent::Block(parent) => {
                    let parent = frame.block(parent).map_err(failed)?;
                    let items = block.items as usize * frame.info().item_size;
                    decoded.get(&parent.raw_offset).and_then(|parent| parent.get(..items))
                }
                _ => None,
            };
            let options = DecodeOptions { base, zstd: zstandard(), ..DecodeOptions::default() };
            let items = frame.decode_blocks(number..number + 1, payload, &options);
            decoded.insert(block.raw_offset, items.map_err(failed)?);
        }
        Ok(decoded)
    }
}

/// The blocks that ranges of the decoded frame touch, and those that these are coded against.
fn touched(frame: &Frame, ranges: &[Range<u64>]) -> bf16codecs::Result<BTreeSet<u64>> {
    let info = frame.info();
    let steps = u64::from(info.steps.max(1));
    let (version_size, version_blocks) = (info.raw_size / steps, info.blocks / steps);
    let block_size = info.block_items * info.item_size as u64;
    // The bytes after the last whole item belong to the last block.
    let block_at = |byte: u64| {
        let place = (byte % version_size / block_size).min(version_blocks.saturating_sub(1));
        byte / version_size * version_blocks + place
    };
    let mut found = BTreeSet::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        found.extend(block_at(range.start)..=block_at(range.end - 1));
    }
    let mut rest: Vec<u64> = found.iter().copied().collect();
    while let Some(number) = rest.pop() {
        if let Parent::Block(parent) = frame.block(number)?.parent {
            if found.insert(parent) {
                rest.push(parent);
            }
        }
    }
    Ok(found)
}

/// Ranges of what was decoded in pieces, which hold them, one after the other.
fn cut(pieces: &BTreeMap<u64, Vec<u8>>, ranges: &[Range<u64>]) -> Result<Vec<u8>, CodecError> {
    let size: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let mut out = Vec::with_capacity(size as usize);
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let piece = pieces.range(..=at).next_back().and_then(|(begin, piece)| {
                let (from, to) = ((at - begin) as usize, (range.end - begin) as usize);
                piece.get(from..to.min(piece.len())).filter(|piece| !piece.is_empty())
            });
            let piece = piece.ok_or_else(|| damage("blocks are not where its head says"))?;
            out.extend_from_slice(piece);
            at += piece.len() as u64;
        }
    }
    Ok(out)
}

fn disappeared() -> CodecError {
    damage("the chunk disappeared while it was being read")
}

fn damage(what: &str) -> CodecError {
    CodecError::Other(format!("bf16codecs: {what}"))
}

impl ArrayPartialDecoderTraits for BlocksPartialDecoder {
    fn data_type(&self) -> &DataType {
        &self.data_type
    }

    fn exists(&self) -> Result<bool, StorageError> {
        self.stored.exists()
    }

    fn size_held(&self) -> usize {
        self.stored.size_held()
    }

    fn partial_decode(
        &self,
        indexer: &dyn Indexer,
        options: &CodecOptions,
    ) -> Result<ArrayBytes<'_>, CodecError> {
        if indexer.dimensionality() != self.shape.len() {
            let (given, own) = (indexer.dimensionality(), self.shape.len());
            return Err(IndexerError::new_incompatible_dimensionality(given, own).into());
        }
        let ranges = indexer.iter_contiguous_byte_ranges(&self.shape, self.item_size)?;
        let ranges: Vec<Range<u64>> = ranges.collect();
        if ranges.iter().any(|range| range.end > self.nbytes) {
            return Err(damage("a part reaches beyond the chunk"));
        }
        match self.items(&ranges, options)? {
            Some(items) => to_native(Cow::Owned(items), &self.data_type),
            None => {
                Ok(ArrayBytes::new_fill_value(&self.data_type, indexer.len(), &self.fill_value)?)
            }
        }
    }

    fn supports_partial_decode(&self) -> bool {
        self.stored.supports_partial_decode()
    }
}
