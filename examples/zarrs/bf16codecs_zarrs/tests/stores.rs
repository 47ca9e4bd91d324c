//! Stores of the Python package, read and written by `zarrs`. `tests/rust` of the repository writes
//! them to the folder that BF16CODECS_STORES names: below `arrays`, and beside each its items, as
//! `NAME.raw`; below `damaged` with what Python makes of them, as `NAME.verdict`. What these tests
//! write below `written`, it reads.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zarrs::array::{Array, ArrayBuilder, ArrayBytes, ArrayMetadata, ArraySubset};
use zarrs::filesystem::FilesystemStore;
use zarrs::storage::storage_adapter::performance_metrics::PerformanceMetricsStorageAdapter;
use zarrs::storage::ReadableStorageTraits;

type Counted = PerformanceMetricsStorageAdapter<FilesystemStore>;

fn stores() -> PathBuf {
    bf16codecs_zarrs::register();
    PathBuf::from(std::env::var("BF16CODECS_STORES").expect("BF16CODECS_STORES names a folder"))
}

/// The arrays below a folder, by name.
fn arrays(folder: &Path) -> Vec<(String, Array<Counted>, Arc<Counted>)> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    paths.sort();
    let open = |path: PathBuf| {
        let store = Arc::new(Counted::new(Arc::new(FilesystemStore::new(&path).unwrap())));
        let array = Array::open(store.clone(), "/");
        (name_of(&path), array.unwrap_or_else(|error| panic!("{path:?}: {error}")), store)
    };
    paths.into_iter().map(open).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Items of a part of an array, cut out of all of them.
fn cut(raw: &[u8], shape: &[u64], size: u64, part: &[Range<u64>]) -> Vec<u8> {
    let Some((own, rest)) = part.split_first() else {
        return raw.to_vec();
    };
    let row: u64 = shape[1..].iter().product::<u64>() * size;
    let index = |index: u64| {
        let row = &raw[usize::try_from(index * row).unwrap()..][..usize::try_from(row).unwrap()];
        cut(row, &shape[1..], size, rest)
    };
    own.clone().flat_map(index).collect()
}

/// Parts of an array of this shape: all, one item, rows, columns, and a box in the middle.
fn parts(shape: &[u64]) -> Vec<Vec<Range<u64>>> {
    let all: Vec<_> = shape.iter().map(|length| 0..*length).collect();
    let mut found = vec![all.clone()];
    found.push(shape.iter().map(|n| n / 2..n / 2 + 1).collect());
    found.push(shape.iter().map(|n| n - 1..*n).collect());
    found.push(shape.iter().map(|n| n / 3..n - n / 5).collect());
    for (axis, length) in shape.iter().enumerate() {
        let mut slice = all.clone();
        slice[axis] = length / 2..length / 2 + 1;
        found.push(slice.clone());
        slice[axis] = length / 4..length - length / 4;
        found.push(slice);
    }
    found
}

fn read(array: &Array<Counted>, part: &[Range<u64>]) -> Result<Vec<u8>, String> {
    let subset = ArraySubset::new_with_ranges(part);
    let bytes = array.retrieve_array_subset::<ArrayBytes>(&subset);
    let bytes = bytes.map_err(|error| error.to_string())?;
    Ok(bytes.into_fixed().unwrap().into_owned())
}

#[test]
#[ignore = "needs BF16CODECS_STORES"]
fn arrays_have_the_bits_of_python() {
    let folder = stores().join("arrays");
    let arrays = arrays(&folder);
    assert!(arrays.len() > 15);
    for (name, array, _) in arrays {
        let raw = fs::read(folder.join(format!("{name}.raw"))).unwrap();
        let size = array.data_type().fixed_size().unwrap() as u64;
        for part in parts(array.shape()) {
            let items = read(&array, &part).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(items == cut(&raw, array.shape(), size, &part), "{name} {part:?}");
        }
    }
}

#[test]
#[ignore = "needs BF16CODECS_STORES"]
fn a_row_reads_the_head_and_its_blocks() {
    let mut counted = 0;
    for (name, array, store) in arrays(&stores().join("arrays")) {
        if !name.starts_with("blocks") {
            continue;
        }
        let file = stored_size(&array, &store);
        store.reset();
        let mut row: Vec<_> = array.shape().iter().map(|n| n / 2..n / 2 + 1).collect();
        *row.last_mut().unwrap() = 0..*array.shape().last().unwrap();
        read(&array, &row).unwrap();
        // Blocks have 512 KiB, of Zstandard 1 MiB; a row touches one, or two, and a step's those of
        // earlier steps too.
        let (reads, bytes) = (store.reads(), store.bytes_read());
        println!("{name}: {bytes} bytes in {reads} reads, of a chunk of {file}");
        assert!(bytes <= 4096 + (1 << 20) + 100, "{name}: {bytes}");
        assert!(bytes * 2 < file, "{name}: {bytes} of {file}");
        assert!(reads <= if name.contains("steps") { 4 } else { 2 }, "{name}: {reads}");
        counted += 1;
    }
    assert!(counted > 8, "{counted}");
}

/// How large the first chunk of an array is, as it is stored.
fn stored_size(array: &Array<Counted>, store: &Counted) -> usize {
    let key = array.chunk_key(&vec![0; array.dimensionality()]);
    usize::try_from(store.size_key(&key).unwrap().unwrap()).unwrap()
}

#[test]
#[ignore = "needs BF16CODECS_STORES"]
fn damaged_chunks_are_errors_or_what_was_written() {
    let folder = stores().join("damaged");
    let raw = fs::read(folder.join("original")).unwrap();
    let mut errors = [0; 2];
    for (name, array, _) in arrays(&folder) {
        let verdict = fs::read_to_string(folder.join(format!("{name}.verdict"))).unwrap();
        let size = array.data_type().fixed_size().unwrap() as u64;
        let all: Vec<_> = array.shape().iter().map(|n| 0..*n).collect();
        let whole = read(&array, &all);
        match &whole {
            Ok(items) => assert!(*items == raw, "{name} has other bytes"),
            Err(error) => {
                assert!(error.contains("bf16codecs") || error.contains("chunk"), "{error}")
            }
        }
        assert_eq!(whole.is_err(), !verdict.is_empty(), "{name}: {whole:?}, Python: {verdict}");
        errors[0] += usize::from(whole.is_err());
        // What a part does not touch, it need not notice.
        for row in [0, array.shape()[0] / 2, array.shape()[0] - 1] {
            let mut part = all.clone();
            part[0] = row..row + 1;
            match read(&array, &part) {
                Ok(items) => assert!(items == cut(&raw, array.shape(), size, &part), "{name}"),
                Err(_) => errors[1] += 1,
            }
        }
    }
    assert!(errors[0] > 50 && errors[1] > 50, "{errors:?}");
}

#[test]
#[ignore = "needs BF16CODECS_STORES"]
fn arrays_are_written_for_python() {
    let stores = stores();
    let (folder, written) = (stores.join("arrays"), stores.join("written"));
    for (name, array, _) in arrays(&folder) {
        if name.contains("growing") || name.contains("auto") {
            continue; // Of these, there is no encoder here.
        }
        let store = Arc::new(FilesystemStore::new(written.join(&name)).unwrap());
        // Metadata of format 3 are made anew, from what the codecs say of themselves.
        let copy = match array.metadata() {
            ArrayMetadata::V3(_) => ArrayBuilder::from_array(&array).build(store, "/").unwrap(),
            ArrayMetadata::V2(_) => {
                Array::new_with_metadata(store, "/", array.metadata().clone()).unwrap()
            }
        };
        copy.store_metadata().unwrap();
        let all = copy.subset_all();
        let items: ArrayBytes = array.retrieve_array_subset(&all).unwrap();
        copy.store_array_subset(&all, items).unwrap();
    }
}

#[test]
#[ignore = "needs BF16CODECS_STORES"]
fn what_is_not_there_is_refused() {
    let folder = stores().join("refused");
    let mut count = 0;
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let store = Arc::new(FilesystemStore::new(&path).unwrap());
        let error = Array::open(store, "/").err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| panic!("{path:?} was opened"));
        println!("{}: {error}", name_of(&path));
        assert!(error.contains("bf16codecs"), "{error}");
        count += 1;
    }
    assert!(count > 4, "{count}");
}
