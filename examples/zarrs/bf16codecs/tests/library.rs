//! What the crate promises by itself: round trips, verdicts on arguments, and what Rust adds to C.

use bf16codecs::{
    active_isa, decode, decode_into, encode, encode_room, head_size, inspect, rle_decode,
    rle_decoded_size, rle_encode, version, Codec, DecodeOptions, Dtype, EncodeOptions, Error,
    Frame, Parent, Zstandard, LEVEL_BEST, PREFIX_SIZE,
};

/// Bytes such as weights have: few exponents, and any mantissa.
fn weights(items: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let mut item = || {
        let exponent = 0x3b80 - 0x80 * (next().leading_zeros() % 7);
        (exponent & 0x7f80) | (next() & 0x807f)
    };
    (0..items).flat_map(|_| u16::try_from(item()).unwrap().to_le_bytes()).collect()
}

/// A library that can do nothing.
struct Refuses;

impl Zstandard for Refuses {
    fn compress(&self, _: &[u8], _: i32, _: &mut [u8]) -> Option<usize> {
        None
    }

    fn decompress(&self, _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}

struct Panics;

impl Zstandard for Panics {
    fn compress(&self, _: &[u8], _: i32, _: &mut [u8]) -> Option<usize> {
        panic!("no compressor today")
    }

    fn decompress(&self, _: &[u8], _: &mut [u8]) -> bool {
        panic!("no decompressor today")
    }
}

/// Uses the library while that is waiting for it.
struct Nested;

impl Zstandard for Nested {
    fn compress(&self, plane: &[u8], _: i32, _: &mut [u8]) -> Option<usize> {
        let frame = encode(plane, &EncodeOptions::default()).unwrap();
        assert_eq!(decode(&frame, &DecodeOptions::default()).unwrap(), plane);
        None
    }

    fn decompress(&self, _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}

#[test]
fn bytes_come_back() {
    for items in [0, 1, 100, 70_000] {
        for tail in 0..3 {
            let mut raw = weights(items);
            raw.extend([1, 2, 3].iter().take(tail));
            for (codec, level) in [
                (Codec::Split, 0),
                (Codec::Huffman, 0),
                (Codec::Arithmetic, 0),
                (Codec::Arithmetic, LEVEL_BEST),
            ] {
                for name in ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn"] {
                    let dtype = Dtype::of_name(name).unwrap();
                    let options =
                        EncodeOptions { codec, level, dtype, row: 100, ..Default::default() };
                    let frame = encode(&raw, &options).unwrap();
                    assert!(frame.len() as u64 <= encode_room(raw.len() as u64, &options).unwrap());
                    let info = inspect(&frame).unwrap();
                    assert_eq!((info.codec, info.dtype), (codec, dtype));
                    assert_eq!(info.raw_size, raw.len() as u64);
                    assert_eq!(decode(&frame, &DecodeOptions::default()).unwrap(), raw);
                }
            }
        }
    }
}

#[test]
fn options_of_the_encoder_are_used() {
    let raw = weights(6000);
    let plain = encode(&raw, &EncodeOptions::default()).unwrap();
    let info = |options: EncodeOptions| inspect(&encode(&raw, &options).unwrap()).unwrap();
    assert!(!info(EncodeOptions { checksums: false, ..Default::default() }).has_checksums);
    let by_byte = EncodeOptions { codec: Codec::Split, by_byte: true, ..Default::default() };
    assert!(info(by_byte).by_byte);
    assert_eq!(info(EncodeOptions { block_items: 256, ..Default::default() }).blocks, 24);
    let versions = raw[..4000].repeat(3);
    let steps = EncodeOptions { steps: 3, ..Default::default() };
    let frame = encode(&versions, &steps).unwrap();
    assert_eq!(inspect(&frame).unwrap().steps, 3);
    assert!(frame.len() < plain.len());
    assert_eq!(decode(&frame, &DecodeOptions::default()).unwrap(), versions);
    let few = encode(&raw[..60], &EncodeOptions { may_drop_steps: true, ..steps }).unwrap();
    assert_eq!(inspect(&few).unwrap().steps, 1);
}

#[test]
fn differences_to_a_base() {
    let base = weights(3000);
    let mut raw = base.clone();
    raw[11] ^= 1;
    let options = EncodeOptions { base: Some(&base), ..Default::default() };
    let frame = encode(&raw, &options).unwrap();
    assert!(inspect(&frame).unwrap().base_digest.is_some());
    let with = |base| decode(&frame, &DecodeOptions { base, ..Default::default() });
    assert_eq!(with(Some(&base)).unwrap(), raw);
    assert!(matches!(with(None), Err(Error::BaseMismatch(_))));
    assert!(matches!(with(Some(&raw)), Err(Error::BaseMismatch(_))));
    assert!(matches!(with(Some(&base[1..])), Err(Error::BaseMismatch(_))));
    assert!(matches!(with(Some(&[])), Err(Error::BaseMismatch(_))));
    // The library takes a base to be as long as what is encoded.
    let short = EncodeOptions { base: Some(&base[1..]), ..Default::default() };
    assert!(matches!(encode(&raw, &short), Err(Error::InvalidArgument(_))));
}

#[test]
fn arguments_are_checked() {
    let raw = weights(100);
    for (text, options) in [
        ("the codec is", EncodeOptions { codec: Codec::Growing, ..Default::default() }),
        ("has no levels", EncodeOptions { level: 1, ..Default::default() }),
        ("splits by byte", EncodeOptions { by_byte: true, ..Default::default() }),
        ("a power of two", EncodeOptions { block_items: 1000, ..Default::default() }),
        ("steps must be", EncodeOptions { steps: 0, ..Default::default() }),
        ("3 steps of whole items", EncodeOptions { steps: 3, ..Default::default() }),
        (
            "needs a compressor",
            EncodeOptions { codec: Codec::Zstd, level: 3, ..Default::default() },
        ),
    ] {
        let error = encode(&raw, &options).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let frame = encode(&raw, &EncodeOptions::default()).unwrap();
    let into = |room| decode_into(&frame, &DecodeOptions::default(), &mut vec![0; room]);
    assert_eq!(into(200).unwrap(), 200);
    assert_eq!(into(300).unwrap(), 200);
    assert!(matches!(into(199), Err(Error::NoRoom(_))));
    assert!(matches!(inspect(&[]), Err(Error::Truncated(_))));
    assert!(matches!(head_size(b"no frame at all"), Err(Error::Corrupt(_))));
    assert!(matches!(Frame::open(&frame[..7]), Err(Error::Truncated(_))));
}

#[test]
fn ranges_of_blocks() {
    let raw = weights(2000);
    let options = EncodeOptions { block_items: 256, ..Default::default() };
    let stored = encode(&raw, &options).unwrap();
    let size = usize::try_from(head_size(&stored[..PREFIX_SIZE]).unwrap()).unwrap();
    let frame = Frame::open(&stored[..size]).unwrap();
    assert_eq!(frame.info().blocks, 8);
    let start = |number| usize::try_from(frame.block(number).unwrap().offset).unwrap();
    let none = DecodeOptions::default();
    for first in 0..8_u64 {
        for last in first + 1..=8 {
            let end = if last == 8 { stored.len() } else { start(last) };
            let payload = &stored[start(first)..end];
            let items = frame.decode_blocks(first..last, payload, &none).unwrap();
            let from = usize::try_from(first).unwrap() * 512;
            assert_eq!(items, raw[from..][..items.len()]);
            assert_eq!(items.len(), raw.len().min(usize::try_from(last).unwrap() * 512) - from);
            let mut little = vec![0; items.len() - 1];
            let error = frame.decode_blocks_into(first..last, payload, &none, &mut little);
            assert!(matches!(error, Err(Error::NoRoom(_))));
            let error = frame.decode_blocks(first..last, &payload[1..], &none);
            assert!(error.is_err());
        }
    }
    for range in [8..9, 3..3, 0..u64::MAX, u64::MAX..u64::MAX, 0..9] {
        let error = frame.decode_blocks(range.clone(), &stored, &none).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{range:?}: {error:?}");
        let into = frame.decode_blocks_into(range, &stored, &none, &mut [0; 5000]).unwrap_err();
        assert!(matches!(into, Error::InvalidArgument(_)), "{into:?}");
    }
    assert!(frame.block(8).is_err());
    assert!(frame.planes(0, b"x").is_err());
}

#[test]
fn blocks_of_steps_have_parents() {
    let raw = weights(1000).repeat(2);
    let options = EncodeOptions { steps: 2, block_items: 256, ..Default::default() };
    let stored = encode(&raw, &options).unwrap();
    let frame = Frame::open(&stored).unwrap();
    let block = frame.block(5).unwrap();
    assert_eq!(block.parent, Parent::Block(1));
    assert_eq!(frame.block(1).unwrap().parent, Parent::None);
    let payload =
        &stored[usize::try_from(block.offset).unwrap()..][..usize::try_from(block.size).unwrap()];
    let decoded =
        |base| frame.decode_blocks(5..6, payload, &DecodeOptions { base, ..Default::default() });
    assert_eq!(decoded(Some(&raw[512..1024])).unwrap(), raw[512..1024]);
    assert!(decoded(None).is_err());
    assert!(decoded(Some(&raw[512..1000])).is_err());
    assert!(decoded(Some(&[])).is_err());
}

#[test]
fn an_open_frame_is_shared_by_threads() {
    let raw = weights(100_000);
    let options = EncodeOptions { block_items: 4096, ..Default::default() };
    let stored = encode(&raw, &options).unwrap();
    let frame = Frame::open(&stored).unwrap();
    let block = |number| {
        let block = frame.block(number).unwrap();
        let payload = &stored[usize::try_from(block.offset).unwrap()..]
            [..usize::try_from(block.size).unwrap()];
        frame.decode_blocks(number..number + 1, payload, &DecodeOptions::default()).unwrap()
    };
    let parts = std::thread::scope(|scope| {
        let one = |first: u64| (first..frame.info().blocks).step_by(4).map(block).collect();
        let threads = [0, 1, 2, 3].map(|first| scope.spawn(move || -> Vec<Vec<u8>> { one(first) }));
        threads.map(|thread| thread.join().unwrap())
    });
    let count = usize::try_from(frame.info().blocks).unwrap();
    let found: Vec<u8> = (0..count).flat_map(|n| parts[n % 4][n / 4].clone()).collect();
    assert!(found == raw);
    std::thread::spawn(move || drop(frame)).join().unwrap();
}

#[test]
fn zstandard_is_the_callers() {
    let raw = weights(50_000);
    let with = |zstd| EncodeOptions { codec: Codec::Zstd, level: 3, zstd, ..Default::default() };
    // Where a plane cannot be compressed, it is stored.
    for zstd in [&Refuses as &dyn Zstandard, &Panics, &Nested] {
        let frame = encode(&raw, &with(Some(zstd))).unwrap();
        assert_eq!(decode(&frame, &DecodeOptions::default()).unwrap(), raw);
    }
    #[cfg(feature = "zstd")]
    {
        let system: &dyn Zstandard = &bf16codecs::SystemZstd;
        let frame = encode(&raw, &with(Some(system))).unwrap();
        assert!(frame.len() < raw.len() * 9 / 10);
        let decoded = |zstd| decode(&frame, &DecodeOptions { zstd, ..Default::default() });
        assert_eq!(decoded(Some(system)).unwrap(), raw);
        assert!(matches!(decoded(None), Err(Error::Unsupported(_))));
        assert!(matches!(decoded(Some(&Refuses)), Err(Error::Corrupt(_))));
        assert!(matches!(decoded(Some(&Panics)), Err(Error::Corrupt(_))));
    }
}

#[test]
fn run_lengths() {
    for raw in [vec![], vec![7], b"aaab".repeat(100), vec![0; 10_000], weights(500)] {
        let encoded = rle_encode(&raw).unwrap();
        assert_eq!(rle_decoded_size(&encoded).unwrap(), raw.len() as u64);
        assert_eq!(rle_decode(&encoded).unwrap(), raw);
    }
    assert!(rle_encode(&[0; 10_000]).unwrap().len() < 500);
    assert!(rle_decode(b"ab\xff\x04c").is_err());
}

#[test]
fn names() {
    assert!(version().split('.').count() >= 3);
    assert!(!active_isa().is_empty());
    assert_eq!(Codec::of_name("arithmetic"), Some(Codec::Arithmetic));
    assert_eq!(Codec::of_name("gzip"), None);
    assert_eq!(Dtype::of_name("float8_e5m2").map(Dtype::name), Some("float8_e5m2"));
    assert_eq!(Dtype::of_name("int8"), None);
}
