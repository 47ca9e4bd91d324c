//! The parameters of codecs, as array metadata have them.

use bf16codecs::{Codec, Dtype, EncodeOptions, LEVEL_BEST, LEVEL_FAST};
use serde_json::{json, Map, Value};
use zarrs::plugin::PluginCreateError;

const PREFIX: &str = "bf16codecs.";
const AUTO: &str = "auto";
const DEFAULT_ZSTD_LEVEL: i64 = 3;

/// The parameters of a codec that encodes frames. Decoding needs none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    codec: Codec,
    /// Without one, that of the array.
    dtype: Option<Dtype>,
    level: i32,
    by_byte: bool,
    checksum: bool,
    steps: u32,
    grid: bool,
}

impl Configuration {
    /// The codec of a name in metadata, such as "bf16codecs.huffman".
    #[must_use]
    pub fn codec_of_name(name: &str) -> Option<Codec> {
        let codec = Codec::of_name(name.strip_prefix(PREFIX)?)?;
        matches!(codec, Codec::Split | Codec::Huffman | Codec::Arithmetic | Codec::Zstd)
            .then_some(codec)
    }

    /// The defaults of a codec, for numbers of the array's data type.
    #[must_use]
    pub fn of_codec(codec: Codec) -> Self {
        let level = if codec == Codec::Zstd { DEFAULT_ZSTD_LEVEL as i32 } else { LEVEL_FAST };
        Self { codec, dtype: None, level, by_byte: false, checksum: true, steps: 1, grid: true }
    }

    /// Reads what metadata have under the name of a codec.
    ///
    /// # Errors
    ///
    /// If there is something that the codec does not have.
    pub fn of_metadata(name: &str, given: &Map<String, Value>) -> Result<Self, PluginCreateError> {
        let codec = Self::codec_of_name(name)
            .ok_or_else(|| format!("there is no codec {name:?} of bf16codecs"))?;
        let mut read = Self::of_codec(codec).for_dtype(Dtype::Bfloat16);
        for (key, value) in given {
            read.set(key, value)
                .ok_or_else(|| format!("{name}: there is no {key:?} of {value}"))?;
        }
        Ok(read)
    }

    /// The same for Zarr format 2, where numbers may be of the array's data type.
    pub(crate) fn of_metadata_v2(
        name: &str,
        given: &Map<String, Value>,
    ) -> Result<Self, PluginCreateError> {
        let is_auto = given.get("dtype").is_some_and(|dtype| dtype == AUTO);
        let given = given.iter().filter(|(key, _)| !(is_auto && *key == "dtype"));
        let read = Self::of_metadata(name, &given.map(|(k, v)| (k.clone(), v.clone())).collect())?;
        Ok(Self { dtype: read.dtype.filter(|_| !is_auto), ..read })
    }

    /// Sets a parameter, if the codec has it, and it has such values.
    fn set(&mut self, key: &str, value: &Value) -> Option<()> {
        use Codec::{Arithmetic, Huffman, Split, Zstd};
        match (key, self.codec) {
            ("dtype", _) => self.dtype = Some(Dtype::of_name(value.as_str()?)?),
            ("by", Split) => {
                self.by_byte = match value.as_str()? {
                    "field" => false,
                    "byte" => true,
                    _ => return None,
                };
            }
            ("checksum", Huffman | Arithmetic | Zstd) => self.checksum = value.as_bool()?,
            ("grid", Huffman | Arithmetic) => self.grid = value.as_bool()?,
            ("steps", Huffman | Arithmetic) => {
                let steps = value.as_u64().filter(|steps| (1..=65534).contains(steps))?;
                self.steps = u32::try_from(steps).ok()?;
            }
            ("level", Arithmetic) => {
                self.level = match value.as_str()? {
                    "fast" => LEVEL_FAST,
                    "best" => LEVEL_BEST,
                    _ => return None,
                };
            }
            ("level", Zstd) => {
                let level = value.as_i64().filter(|level| (1..=22).contains(level))?;
                self.level = i32::try_from(level).ok()?;
            }
            _ => return None,
        }
        Some(())
    }

    /// The name that metadata have, such as "bf16codecs.huffman".
    #[must_use]
    pub fn name(&self) -> String {
        format!("{PREFIX}{}", self.codec.name())
    }

    /// The parameters as metadata have them.
    #[must_use]
    pub fn to_metadata(&self) -> Map<String, Value> {
        let mut told = Map::new();
        if self.codec == Codec::Zstd {
            told.insert("level".into(), json!(self.level));
        }
        told.insert("dtype".into(), json!(self.dtype.map_or(AUTO, Dtype::name)));
        match self.codec {
            Codec::Split => {
                told.insert("by".into(), json!(if self.by_byte { "byte" } else { "field" }));
            }
            Codec::Arithmetic => {
                let level = if self.level == LEVEL_BEST { "best" } else { "fast" };
                told.insert("level".into(), json!(level));
            }
            _ => {}
        }
        if self.codec != Codec::Split {
            told.insert("checksum".into(), json!(self.checksum));
        }
        // Readers that do not know it read arrays without.
        if self.steps > 1 {
            told.insert("steps".into(), json!(self.steps));
        }
        if !self.grid {
            told.insert("grid".into(), json!(false));
        }
        told
    }

    /// Whether numbers are of the array's data type.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        self.dtype.is_none()
    }

    /// These parameters, for numbers of a data type if they have none of their own.
    #[must_use]
    pub fn for_dtype(&self, dtype: Dtype) -> Self {
        Self { dtype: self.dtype.or(Some(dtype)), ..self.clone() }
    }

    /// How to encode, given the items in a row of the array, or 0.
    pub(crate) fn options(&self, row: u64) -> EncodeOptions<'static> {
        EncodeOptions {
            codec: self.codec,
            dtype: self.dtype.unwrap_or(Dtype::Bfloat16),
            level: self.level,
            by_byte: self.by_byte,
            checksums: self.checksum,
            steps: self.steps,
            may_drop_steps: true,
            row: if self.grid || self.level == LEVEL_BEST { row } else { 0 },
            grids: self.grid,
            zstd: crate::zstandard(),
            ..EncodeOptions::default()
        }
    }

    /// The items in a row for [`Configuration::options`]: 0 where items are not one number each, or a
    /// row is all that there is of one of several steps.
    pub(crate) fn row_of(&self, row: u64, item_size: usize, items: u64) -> u64 {
        let steps = u64::from(self.steps);
        let is_known = self.dtype.is_some_and(|dtype| dtype.item_size() == item_size);
        if is_known && (steps == 1 || row.saturating_mul(steps) < items) {
            row
        } else {
            0
        }
    }
}

/// Refuses parameters of a codec that has none.
pub(crate) fn check_empty(name: &str, given: &Map<String, Value>) -> Result<(), PluginCreateError> {
    match given.iter().next() {
        None => Ok(()),
        Some((key, value)) => Err(format!("{name}: there is no {key:?} of {value}").into()),
    }
}
