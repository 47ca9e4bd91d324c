//! The bytes and verdicts of the Python package, which `tests/rust` of the repository writes to the
//! file that BF16CODECS_CORPUS names: goldens, damaged frames, and what fuzzing found.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use bf16codecs::{
    decode, decode_into, head_size, inspect, is_growing, DecodeOptions, Error, Frame, Growing,
    Info, Parent, Result, PREFIX_SIZE,
};

/// What a damaged header may claim is not decoded: a test reads thousands of frames.
const MOST_DECODED: usize = 1 << 26;

/// A frame, and what Python makes of it.
struct Record {
    name: String,
    frame: Vec<u8>,
    base: Option<Vec<u8>>,
    /// The class of Python's exception, or nothing.
    error: String,
    /// Its message, or the decoded bytes.
    result: Vec<u8>,
    /// What `inspect` tells.
    facts: String,
}

fn records() -> Vec<Record> {
    let path = std::env::var("BF16CODECS_CORPUS").expect("BF16CODECS_CORPUS names a file");
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut field = || {
        let (size, after) = rest.split_first_chunk::<8>()?;
        let size = usize::try_from(u64::from_le_bytes(*size)).unwrap();
        let (value, after) = after.split_at(size);
        rest = after;
        Some(value.to_vec())
    };
    let mut found = Vec::new();
    while let Some(name) = field() {
        let mut next = || field().unwrap();
        let mut text = || String::from_utf8(next()).unwrap();
        let (error, facts, has_base) = (text(), text(), text());
        found.push(Record {
            name: String::from_utf8(name).unwrap(),
            frame: next(),
            base: Some(next()).filter(|_| has_base == "base"),
            error,
            result: next(),
            facts,
        });
    }
    found
}

fn options(record: &Record) -> DecodeOptions<'_> {
    DecodeOptions {
        base: record.base.as_deref(),
        #[cfg(feature = "zstd")]
        zstd: Some(&bf16codecs::SystemZstd),
        ..DecodeOptions::default()
    }
}

/// Whether Zstandard is asked for, and this build has none.
fn lacks_zstd(error: &Error) -> bool {
    cfg!(not(feature = "zstd")) && matches!(error, Error::Unsupported(_))
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn python_class(error: &Error) -> &'static str {
    match error {
        Error::Corrupt(_) => "CorruptDataError",
        Error::Truncated(_) => "TruncatedDataError",
        Error::BaseMismatch(_) => "BaseMismatchError",
        Error::UnsupportedVersion(_) => "UnsupportedVersionError",
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs BF16CODECS_CORPUS"]
fn frames_get_the_verdicts_of_python() {
    let mut memory = vec![0; MOST_DECODED];
    let mut seen = BTreeSet::new();
    for record in records() {
        let name = &record.name;
        match decode_into(&record.frame, &options(&record), &mut memory) {
            // Versions of libzstd differ in the damage that they detect.
            Ok(_) if !record.error.is_empty() && text(&record.result).contains("Zstandard") => {}
            Ok(size) => {
                assert_eq!(record.error, "", "{name} is decoded");
                assert!(memory[..size] == record.result, "{name} has other bytes");
                assert_eq!(decode(&record.frame, &options(&record)).unwrap(), record.result);
                seen.insert("");
            }
            Err(error) if lacks_zstd(&error) => {}
            // Python had memory for it, and then found it damaged.
            Err(Error::NoRoom(_)) => assert_ne!(record.error, "", "{name}"),
            Err(error) => {
                let class = python_class(&error);
                let message = text(&record.result);
                assert_eq!(class, record.error, "{name}: {error}, and Python: {message}");
                // Python tells how a base is given, and what numcodecs says.
                if !message.contains("give it as") && !message.contains("Zstandard") {
                    assert_eq!(error.message(), message, "{name}");
                }
                seen.insert(class);
            }
        }
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
}

#[test]
#[ignore = "needs BF16CODECS_CORPUS"]
fn parts_of_frames_are_those_of_python() {
    let mut sizes = [0; 2];
    for record in records().iter().filter(|record| record.error.is_empty()) {
        let growing = is_growing(&record.frame);
        let (facts, raw) = if growing {
            versions_of_growing(record).unwrap()
        } else {
            match parts(record) {
                Err(error) if lacks_zstd(&error) => continue,
                told => told.unwrap(),
            }
        };
        assert_eq!(facts, record.facts, "{}", record.name);
        assert!(raw == record.result, "{} has other bytes in parts", record.name);
        sizes[usize::from(growing)] += 1;
    }
    assert!(sizes[0] > 100 && sizes[1] > 3, "{sizes:?}");
}

/// Reads a frame as a reader of ranges does: the prefix, the head, each block with the items of what
/// it is coded against. Returns what was told of it, and the decoded bytes.
fn parts(record: &Record) -> Result<(String, Vec<u8>)> {
    let frame = &record.frame;
    let prefix = &frame[..frame.len().min(PREFIX_SIZE)];
    let size = usize::try_from(head_size(prefix)?).unwrap();
    let opened = Frame::open(&frame[..size])?;
    let info = opened.info().clone();
    assert_eq!(info, inspect(frame)?);
    assert_eq!((info.head_size, info.room), (size as u64, 0));
    let by = if info.by_byte { "byte" } else { "field" };
    let mut facts = first_line(&info);
    writeln!(facts, " {} {by}", info.steps).unwrap();
    let mut raw = Vec::new();
    for number in 0..info.blocks {
        let block = opened.block(number)?;
        let payload = &frame[usize::try_from(block.offset).unwrap()..];
        let payload = &payload[..usize::try_from(block.size).unwrap()];
        let checksum = block.checksum.map_or("-".to_owned(), |sum| sum.to_string());
        write!(facts, "{} {} {} {checksum}", block.items, block.offset, block.size).unwrap();
        for plane in opened.planes(number, payload)? {
            write!(facts, " {} {}", plane.mode, plane.size).unwrap();
        }
        facts.push('\n');
        let items = usize::try_from(block.items).unwrap() * info.item_size;
        let base = match block.parent {
            Parent::None => None,
            Parent::Block(parent) => {
                let parent = usize::try_from(opened.block(parent)?.raw_offset).unwrap();
                Some(raw[parent..][..items].to_vec())
            }
            Parent::Outside => {
                let base = record.base.as_ref().unwrap();
                Some(base[usize::try_from(block.raw_offset).unwrap()..][..items].to_vec())
            }
        };
        let options = DecodeOptions { base: base.as_deref(), ..options(record) };
        assert_eq!(block.raw_offset, raw.len() as u64);
        raw.extend(opened.decode_blocks(number..number + 1, payload, &options)?);
    }
    if info.blocks == 0 {
        raw = decode(frame, &options(record))?; // odd bytes, without a block, are in the head
    }
    Ok((facts, raw))
}

fn first_line(info: &Info) -> String {
    format!(
        "{} {} {} {} {} {}",
        info.version,
        info.codec.name(),
        info.dtype.name(),
        info.padded_size,
        info.frame_size,
        info.base_digest.map_or("-".to_owned(), |digest| format!("{digest:016x}")),
    )
}

/// The same for a growing frame, whose versions it opens.
fn versions_of_growing(record: &Record) -> Result<(String, Vec<u8>)> {
    let frame = &record.frame;
    let size = usize::try_from(head_size(&frame[..PREFIX_SIZE])?).unwrap();
    let growing = Growing::open(&frame[..size])?;
    let info = growing.info();
    let mut facts = first_line(info);
    writeln!(facts, " {}", info.room).unwrap();
    let mut versions: Vec<Vec<u8>> = Vec::new();
    for number in 0..u64::from(info.steps) {
        let version = growing.version(number)?;
        let parent = version.parent.map_or("-".to_owned(), |parent| parent.to_string());
        writeln!(facts, "{} {} {parent}", version.offset, version.size).unwrap();
        let own = &frame[usize::try_from(version.offset).unwrap()..];
        let own = &own[..usize::try_from(version.size).unwrap()];
        let head = usize::try_from(head_size(own)?).unwrap();
        let opened = growing.frame(number, &own[..head])?;
        let base =
            version.parent.map(|parent| versions[usize::try_from(parent).unwrap()].as_slice());
        let options = DecodeOptions { base, ..options(record) };
        versions.push(opened.decode_blocks(0..opened.info().blocks, &own[head..], &options)?);
    }
    let none = growing.frame(u64::from(info.steps), frame).unwrap_err();
    assert!(none.message().contains(&format!("no version {}", info.steps)), "{none}");
    let whole = decode(frame, &DecodeOptions { padded: true, ..options(record) })?;
    let there = versions.concat();
    assert!(whole.starts_with(&there) && whole[there.len()..].iter().all(|byte| *byte == 255));
    assert_eq!(whole.len() as u64, info.padded_size);
    Ok((facts, there))
}
