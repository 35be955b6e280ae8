//! One Parquet file: its columns, its labels, and the places of pages with images.

use std::io::{BufReader, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, Bytes};
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type};
use parquet::column::page::PageReader as _;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use parquet::file::page_index::index_reader::decode_offset_index;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type as SchemaType};
use serde::{Deserialize, Serialize};

use crate::data::files::{Files, Reader};
use crate::data::labels::Labels;

/// Bytes of a header that are read at once.
const HEADER_BYTES: usize = 4096;

/// The label of a row that has none.
pub(super) const NO_LABEL: i32 = i32::MIN;

/// A file, for the Parquet reader.
#[derive(Clone, Debug)]
pub(super) struct ParquetFile {
    pub(super) files: Arc<Files>,
    pub(super) number: u32,
    pub(super) bytes: u64,
}

/// The columns of images and labels.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub(super) image: usize,
    pub(super) label: usize,
    /// Whether a row has a list of classes.
    pub(super) has_lists: bool,
    /// Whether a row may have no list.
    may_lack_list: bool,
    /// Names of the classes, if Hugging Face's metadata has them.
    pub(super) classes: Vec<String>,
}

/// A column chunk of images.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) file: ParquetFile,
    pub(super) column: ColumnChunkMetaData,
    rows: usize,
    /// Its pages with values; a dictionary page may come before.
    pub(super) pages: Vec<PageLocation>,
}

/// The place of a page, and the first of its rows in the chunk.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Place {
    offset: i64,
    bytes: i32,
    first_row: i64,
}

impl From<Place> for PageLocation {
    fn from(place: Place) -> Self {
        Self {
            offset: place.offset,
            compressed_page_size: place.bytes,
            first_row_index: place.first_row,
        }
    }
}

/// The columns that a manifest names, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::data) struct Named<'a> {
    pub(in crate::data) image: Option<&'a str>,
    pub(in crate::data) label: Option<&'a str>,
}

/// The metadata of Hugging Face's `datasets` beside the schema.
#[derive(Default, Deserialize)]
struct HuggingFace {
    #[serde(default)]
    info: Info,
}

#[derive(Default, Deserialize)]
struct Info {
    #[serde(default)]
    features: serde_json::Map<String, serde_json::Value>,
}

impl ParquetFile {
    pub(super) fn path(&self) -> &Path {
        self.files.path(self.number)
    }

    pub(super) fn metadata(&self) -> Result<ParquetMetaData, ParquetError> {
        // The minimum and maximum image of each row group are useless.
        let options =
            ParquetMetaDataOptions::new().with_column_stats_policy(ParquetStatisticsPolicy::SkipAll);
        let reader = ParquetMetaDataReader::new().with_metadata_options(Some(options));
        reader.parse_and_finish(self)
    }

    /// The column chunks of images, with the places of their pages.
    pub(super) fn chunks(
        &self,
        metadata: &ParquetMetaData,
        columns: &Columns,
        pages: Vec<Vec<Place>>,
    ) -> Vec<Chunk> {
        let groups = metadata.row_groups().iter().zip(pages);
        let chunk = groups.map(|(group, pages)| Chunk {
            file: self.clone(),
            column: group.column(columns.image).clone(),
            rows: group.num_rows() as usize,
            pages: pages.into_iter().map(PageLocation::from).collect(),
        });
        chunk.collect()
    }

    /// The places of the image pages in each row group, from the file's index or pages' headers.
    pub(super) fn pages(
        &self,
        metadata: &ParquetMetaData,
        columns: &Columns,
    ) -> Result<Vec<Vec<Place>>, ParquetError> {
        let groups = metadata.row_groups();
        let columns: Vec<_> = groups.iter().map(|group| group.column(columns.image)).collect();
        let ranges: Option<Vec<_>> = columns.iter().map(|column| column.offset_index_range()).collect();
        let ranges = ranges.unwrap_or_default();
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        // A file's indices are adjacent, and read together.
        let index = match end {
            0 => Bytes::new(),
            end => self.get_bytes(start, (end - start) as usize)?,
        };
        let mut pages = Vec::with_capacity(groups.len());
        for (number, (column, group)) in columns.into_iter().zip(groups).enumerate() {
            let rows = group.num_rows() as usize;
            pages.push(match ranges.get(number) {
                Some(range) => {
                    let [start, end] = [range.start, range.end].map(|place| (place - start) as usize);
                    indexed_pages(&index[start..end], column, rows)?
                }
                None => pages_by_headers(self, column, rows)?,
            });
        }
        Ok(pages)
    }

    /// The label of each row.
    pub(super) fn labels(
        &self,
        metadata: &ParquetMetaData,
        columns: &Columns,
    ) -> Result<Labels, ParquetError> {
        let mut labels = Labels::default();
        for group in metadata.row_groups() {
            let column = group.column(columns.label);
            let rows = group.num_rows() as usize;
            let (start, bytes) = column.byte_range();
            // It is small, and read at once.
            let held = HeldBytes {
                start,
                bytes: self.get_bytes(start, bytes as usize)?,
            };
            let reader = SerializedPageReader::new(Arc::new(held), column, rows, None)?;
            let description = column.column_descr_ptr();
            let is_short = column.column_type() == Type::INT32;
            labels.append(match (columns.has_lists, is_short) {
                (false, true) => single(values::<Int32Type>(description, reader, 0, rows)?)?,
                (false, false) => single(values::<Int64Type>(description, reader, 0, rows)?)?,
                (true, true) => lists::<Int32Type>(description, reader, rows, columns.may_lack_list)?,
                (true, false) => lists::<Int64Type>(description, reader, rows, columns.may_lack_list)?,
            });
        }
        Ok(labels)
    }
}

impl Chunk {
    /// The images of a page; `None` for rows without one.
    pub(super) fn images(&self, page: usize) -> Result<Vec<Option<ByteArray>>, ParquetError> {
        let first = self.pages[0].clone();
        let this = self.pages[page].clone();
        let before = this.first_row_index as usize;
        // The reader takes whatever precedes the first page for a dictionary, and skips that page.
        let pages = if page == 0 { vec![this] } else { vec![first, this] };
        let rows = self.rows_until(page);
        let reader = SerializedPageReader::new(Arc::new(self.file.clone()), &self.column, rows, Some(pages))?;
        values::<ByteArrayType>(self.column.column_descr_ptr(), reader, before, rows - before)
    }

    /// Rows of the chunk up to the end of a page.
    fn rows_until(&self, page: usize) -> usize {
        let after = self.pages.get(page + 1);
        after.map_or(self.rows, |after| after.first_row_index as usize)
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn rows_of(&self, page: usize) -> usize {
        self.rows_until(page) - self.pages[page].first_row_index as usize
    }
}

/// The rows of a column as stored: values, and the levels that assign them to rows.
struct Records<T> {
    values: Vec<T>,
    levels: Vec<i16>,
    /// For columns with lists.
    repeats: Vec<i16>,
}

/// Reads `rows` rows after the first `skipped`.
fn records<T: DataType>(
    description: ColumnDescPtr,
    pages: SerializedPageReader<impl ChunkReader + 'static>,
    skipped: usize,
    rows: usize,
) -> Result<Records<T::T>, ParquetError> {
    let mut column = ColumnReaderImpl::<T>::new(description, Box::new(pages));
    let mut found = Records {
        values: Vec::with_capacity(rows),
        levels: Vec::with_capacity(rows),
        repeats: Vec::new(),
    };
    let all = skipped + rows;
    let mut read = column.skip_records(skipped)?;
    while read < all {
        let Records {
            values,
            levels,
            repeats,
        } = &mut found;
        let (records, _, _) = column.read_records(all - read, Some(levels), Some(repeats), values)?;
        if records == 0 {
            return Err(ParquetError::EOF(format!(
                "it has {read} rows, but its metadata says {all}"
            )));
        }
        read += records;
    }
    Ok(found)
}

/// [`NO_LABEL`] if there is none.
fn class_of(value: Option<impl Into<i64>>) -> Result<i32, ParquetError> {
    let class = value.map_or(NO_LABEL.into(), Into::into);
    // Beyond any model's classes.
    i32::try_from(class).map_err(|_| ParquetError::General(format!("it has the label {class}")))
}

fn single(values: Vec<Option<impl Into<i64>>>) -> Result<Labels, ParquetError> {
    let classes: Result<Vec<i32>, _> = values.into_iter().map(class_of).collect();
    classes.map(Labels::from_classes)
}

/// The lists of `rows` rows: [`NO_LABEL`] in place of a missing list, or of a missing number in
/// one. Levels of rows and lists: <https://parquet.apache.org/docs/file-format/nestedencoding/>.
fn lists<T: DataType<T: Into<i64>>>(
    description: ColumnDescPtr,
    pages: SerializedPageReader<impl ChunkReader + 'static>,
    rows: usize,
    may_lack_list: bool,
) -> Result<Labels, ParquetError> {
    let most = description.max_def_level();
    let empty = i16::from(may_lack_list);
    let Records {
        values,
        levels,
        repeats,
    } = records::<T>(description, pages, 0, rows)?;
    let mut values = values.into_iter();
    let mut found: Vec<Vec<i32>> = Vec::with_capacity(rows);
    for (level, repeat) in levels.into_iter().zip(repeats) {
        if repeat == 0 {
            found.push(Vec::new());
        }
        // A missing list, or a missing number in one, is below the level of a value.
        let value = if level == most { values.next() } else { None };
        if level != empty
            && let Some(list) = found.last_mut()
        {
            list.push(class_of(value)?);
        }
    }
    Ok(Labels::from_lists(found))
}

/// Values of `rows` rows after the first `skipped`, of a column without lists.
fn values<T: DataType>(
    description: ColumnDescPtr,
    pages: SerializedPageReader<impl ChunkReader + 'static>,
    skipped: usize,
    rows: usize,
) -> Result<Vec<Option<T::T>>, ParquetError> {
    let most = description.max_def_level();
    let Records { values, levels, .. } = records::<T>(description, pages, skipped, rows)?;
    if most == 0 {
        return Ok(values.into_iter().map(Some).collect());
    }
    let mut found = values.into_iter();
    Ok(levels
        .into_iter()
        .map(|level| if level == most { found.next() } else { None })
        .collect())
}

/// The page reader reports a page's rows but not its place: bytes are requested from there.
struct OffsetRecorder {
    file: ParquetFile,
    last: Mutex<u64>,
}

impl Length for OffsetRecorder {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for OffsetRecorder {
    type T = BufReader<Reader>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = start;
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.file.get_bytes(start, length)
    }
}

/// Bytes of a file from an offset on.
struct HeldBytes {
    start: u64,
    bytes: Bytes,
}

impl Length for HeldBytes {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for HeldBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let length = self.len().saturating_sub(start) as usize;
        Ok(self.get_bytes(start, length)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let inner = start.checked_sub(self.start).map(|inner| inner as usize);
        let end = inner.and_then(|inner| inner.checked_add(length));
        match (inner, end) {
            (Some(inner), Some(end)) if end <= self.bytes.len() => Ok(self.bytes.slice(inner..end)),
            _ => Err(ParquetError::EOF(format!(
                "its column ends before {length} bytes at {start}"
            ))),
        }
    }
}

/// The pages of a column chunk, from the index at the file's end.
fn indexed_pages(
    index: &[u8],
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<Vec<Place>, ParquetError> {
    let index = decode_offset_index(index)?;
    let places = index.page_locations().iter().map(|page| Place {
        offset: page.offset,
        bytes: page.compressed_page_size,
        first_row: page.first_row_index,
    });
    let places: Vec<Place> = places.collect();
    let (start, bytes) = column.byte_range();
    let (mut before, mut row) = (start as i64, 0);
    for (number, page) in places.iter().enumerate() {
        let is_first = number == 0;
        let rows_are_good = if is_first {
            page.first_row == 0
        } else {
            page.first_row > row
        };
        if !rows_are_good || page.offset < before || page.bytes <= 0 {
            return Err(contradiction());
        }
        (before, row) = (page.offset + i64::from(page.bytes), page.first_row);
    }
    if before > (start + bytes) as i64 || (rows > 0 && (places.is_empty() || row >= rows as i64)) {
        return Err(contradiction());
    }
    Ok(places)
}

fn contradiction() -> ParquetError {
    ParquetError::General("its page index contradicts its column metadata".into())
}

/// The pages of a column chunk, from their headers.
fn pages_by_headers(
    file: &ParquetFile,
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<Vec<Place>, ParquetError> {
    let asked = Arc::new(OffsetRecorder {
        file: file.clone(),
        last: Mutex::default(),
    });
    let mut reader = SerializedPageReader::new(Arc::clone(&asked), column, rows, None)?;
    let mut pages: Vec<Place> = Vec::new();
    let mut row = 0;
    while let Some(page) = reader.peek_next_page()? {
        let offset = *asked.last.lock().unwrap_or_else(PoisonError::into_inner);
        reader.skip_next_page()?;
        if page.is_dict {
            continue;
        }
        pages.push(Place {
            offset: offset as i64,
            bytes: 0,
            first_row: row as i64,
        });
        row += page.num_rows.or(page.num_levels).unwrap_or(0);
    }
    if row != rows {
        return Err(ParquetError::General(format!(
            "its pages have {row} rows, but its metadata says {rows}"
        )));
    }
    let (start, bytes) = column.byte_range();
    let mut end = (start + bytes) as i64;
    for page in pages.iter_mut().rev() {
        page.bytes = (end - page.offset) as i32;
        end = page.offset;
    }
    Ok(pages)
}

impl Columns {
    /// The named columns, or else the only ones possible. An error lists the columns.
    pub(super) fn find(metadata: &ParquetMetaData, named: Named<'_>) -> Result<Self, String> {
        let file = metadata.file_metadata();
        let text = file
            .key_value_metadata()
            .and_then(|pairs| pairs.iter().find(|pair| pair.key == "huggingface"))
            .and_then(|pair| pair.value.as_deref());
        let features = text.map_or_else(Default::default, |text| {
            serde_json::from_str::<HuggingFace>(text)
                .unwrap_or_default()
                .info
                .features
        });
        let of_kind = |kind: &str| -> Vec<String> {
            let is_kind =
                |feature: &serde_json::Value| feature.get("_type").is_some_and(|found| found == kind);
            features
                .iter()
                .filter(|(_, feature)| is_kind(feature))
                .map(|(name, _)| name.clone())
                .collect()
        };
        let schema = file.schema_descr();
        // Marked columns, and one with a usual name. If there are several, one must be named.
        let pick = |field: &str, named: Option<&str>, mut marked: Vec<String>, usual: &[&str]| {
            if let Some(name) = named {
                return Ok(name.to_owned());
            }
            let by_name = usual.iter().find(|name| !in_column(schema, name).is_empty());
            if let Some(name) = by_name
                && !marked.iter().any(|known| known == name)
            {
                marked.push((*name).to_owned());
            }
            match marked.as_slice() {
                [name] => Ok(name.clone()),
                [] => Err(format!(
                    "no column is named {}: set data.{field}; it has {}",
                    usual.join(" or "),
                    names(schema)
                )),
                several => Err(format!(
                    "data.{field} must name one of its columns {}",
                    several.join(", ")
                )),
            }
        };
        let image_name = pick(
            "imageColumn",
            named.image,
            of_kind("Image"),
            &["image", "img", "jpg"],
        )?;
        let label_name = pick(
            "labelColumn",
            named.label,
            of_kind("ClassLabel"),
            &["label", "labels", "cls"],
        )?;
        let image = only(schema, "imageColumn", &image_name, |path| {
            *path == [image_name.as_str()] || *path == [image_name.as_str(), "bytes"]
        })?;
        let is_file = |column: &ColumnDescPtr| {
            column.physical_type() == Type::BYTE_ARRAY
                && column.max_rep_level() == 0
                && column.logical_type_ref() != Some(&LogicalType::String)
        };
        let Some(image) = image.filter(|place| is_file(&schema.column(*place))) else {
            return Err(format!(
                "column {image_name} has no image files: it must have bytes, or a struct with bytes in a field `bytes`"
            ));
        };
        let label = only(schema, "labelColumn", &label_name, |path| {
            // The numbers of a list are in a group of it.
            *path == [label_name.as_str()] || path.len() == 3
        })?;
        let is_number = |place: usize| {
            let column = schema.column(place);
            matches!(column.physical_type(), Type::INT32 | Type::INT64)
                && (column.path().parts().len() == 1 && column.max_rep_level() == 0
                    || is_in_list(schema.get_column_root(place)))
                && matches!(column.logical_type_ref(), None | Some(LogicalType::Integer(_)))
                && !matches!(
                    column.converted_type(),
                    ConvertedType::DATE | ConvertedType::DECIMAL
                )
        };
        let Some(label) = label.filter(|place| is_number(*place)) else {
            let inside = in_column(schema, &label_name);
            return Err(format!(
                "column {label_name} must have a class number or a list of them in each row, but is {}",
                inside
                    .first()
                    .map_or_else(String::new, |place| described(&schema.column(*place)))
            ));
        };
        let feature = features.get(&label_name);
        // A list's feature nests its numbers' one, in a list or by this name, depending on
        // `datasets`.
        let inner = feature.map(|feature| feature.get("feature").or(feature.get(0)).unwrap_or(feature));
        let classes = inner
            .and_then(|feature| feature.get("names"))
            .map(|names| serde_json::from_value(names.clone()).unwrap_or_default())
            .unwrap_or_default();
        let has_lists = schema.column(label).max_rep_level() > 0;
        Ok(Self {
            image,
            label,
            has_lists,
            may_lack_list: schema.get_column_root(label).is_optional(),
            classes,
        })
    }
}

/// Whether a column is a list of single values in three levels, the format's since 2014: a group
/// with a repeated group with the value.
fn is_in_list(root: &SchemaType) -> bool {
    let inner = |group: &SchemaType| match group.is_group().then(|| group.get_fields()) {
        Some([inner]) => Some(Arc::clone(inner)),
        _ => None,
    };
    inner(root).is_some_and(|list| {
        let is_repeated = list.get_basic_info().repetition() == Repetition::REPEATED;
        is_repeated && inner(&list).is_some_and(|value| value.is_primitive())
    })
}

/// Value columns that are the column of this name, or within it.
fn in_column(schema: &SchemaDescriptor, name: &str) -> Vec<usize> {
    let columns = schema.columns().iter().enumerate();
    let inside =
        columns.filter(|(_, column)| column.path().parts().first().is_some_and(|first| first == name));
    inside.map(|(place, _)| place).collect()
}

/// The column's only value at a wanted path; `None` if there is none. An error without the column.
fn only(
    schema: &SchemaDescriptor,
    field: &str,
    name: &str,
    is_wanted: impl Fn(&[&str]) -> bool,
) -> Result<Option<usize>, String> {
    let inside = in_column(schema, name);
    if inside.is_empty() {
        return Err(format!(
            "it has no column {name} (data.{field}), but {}",
            names(schema)
        ));
    }
    let is_wanted = |place: &usize| {
        let column = schema.column(*place);
        let path: Vec<&str> = column.path().parts().iter().map(String::as_str).collect();
        is_wanted(&path)
    };
    let wanted: Vec<usize> = inside.into_iter().filter(is_wanted).collect();
    match wanted.as_slice() {
        [place] => Ok(Some(*place)),
        [] => Ok(None),
        _ => Err(format!("it has several columns {name}")),
    }
}

fn names(schema: &SchemaDescriptor) -> String {
    let names: Vec<&str> = schema
        .root_schema()
        .get_fields()
        .iter()
        .map(|field| field.name())
        .collect();
    names.join(", ")
}

fn described(column: &ColumnDescPtr) -> String {
    let list = if column.max_rep_level() > 0 {
        "a list in an old encoding, of "
    } else {
        ""
    };
    let kind = match column.logical_type_ref() {
        Some(LogicalType::String) => "text".to_owned(),
        Some(LogicalType::Date | LogicalType::Timestamp(_) | LogicalType::Time(_)) => "a time".to_owned(),
        _ => column.physical_type().to_string(),
    };
    if column.path().parts().len() > 1 && list.is_empty() {
        return format!("a struct with {} of {kind}", column.name());
    }
    format!("{list}{kind}")
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<Reader>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let mut reader = self.files.reader(self.number)?;
        reader.seek(SeekFrom::Start(start))?;
        Ok(BufReader::with_capacity(HEADER_BYTES, reader))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!(
                "it ends at byte {}, before {length} bytes at {start}",
                self.bytes
            )));
        }
        Ok(self.files.read(self.number, start, length)?.into())
    }
}
