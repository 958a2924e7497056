//! Safetensors files of `f32` tensors: written whole and durably or not at all, and checked when read.
//!
//! The header is written here because the format's library keeps metadata in a hash map, and the same
//! weights must give the same bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::error::TrainError;

/// One tensor to write.
pub(crate) struct Entry<'a> {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: &'a [f32],
}

/// Writes a temporary file beside `path`, fsyncs it, renames it, and fsyncs the directory.
///
/// Entries are laid out in the order given, which must be sorted by name, as the format's own writers
/// do.
pub(crate) fn write(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    entries: &[Entry],
) -> Result<(), TrainError> {
    let temporary = temporary_beside(path);
    let written = write_whole(&temporary, metadata, entries);
    let renamed = written
        .and_then(|()| fs::rename(&temporary, path).map_err(TrainError::io("rename to", path)));
    if renamed.is_err() {
        // Best effort: the error that matters is the one already in hand.
        let _ = fs::remove_file(&temporary);
    }
    renamed?;
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(TrainError::io("fsync directory", directory))
}

/// `.NAME.tmp-PID` in the same directory, so that the rename cannot cross file systems.
fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp-{}", std::process::id()))
}

fn write_whole(
    path: &Path,
    metadata: &BTreeMap<String, String>,
    entries: &[Entry],
) -> Result<(), TrainError> {
    let file = File::create(path).map_err(TrainError::io("create", path))?;
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    let header = header(metadata, entries);
    let mut write_all = || -> std::io::Result<()> {
        writer.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.write_all(header.as_bytes())?;
        for entry in entries {
            write_values(&mut writer, entry.values)?;
        }
        writer.flush()?;
        writer.get_ref().sync_all()
    };
    write_all().map_err(TrainError::io("write", path))
}

/// The JSON header, padded with spaces to a multiple of eight bytes.
fn header(metadata: &BTreeMap<String, String>, entries: &[Entry]) -> String {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!(metadata));
    let mut offset = 0;
    for entry in entries {
        let end = offset + entry.values.len() * 4;
        let info = json!({ "dtype": "F32", "shape": entry.shape, "data_offsets": [offset, end] });
        header.insert(entry.name.clone(), info);
        offset = end;
    }
    let mut text = Value::Object(header).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    text
}

fn write_values(writer: &mut impl Write, values: &[f32]) -> std::io::Result<()> {
    if cfg!(target_endian = "little") {
        return writer.write_all(bytemuck::cast_slice(values));
    }
    values
        .iter()
        .try_for_each(|value| writer.write_all(&value.to_le_bytes()))
}

/// Maps a file for reading.
pub(crate) fn map(path: &Path) -> Result<Mmap, TrainError> {
    let file = File::open(path).map_err(TrainError::io("open", path))?;
    // SAFETY: the map is private to one load, which copies out of it. Files this crate writes are
    // replaced by rename, never in place; another program truncating one meanwhile is outside what a
    // process can guard against.
    unsafe { Mmap::map(&file) }.map_err(TrainError::io("map", path))
}

/// Parses a mapped file.
pub(crate) fn parse<'a>(
    path: &Path,
    kind: &'static str,
    bytes: &'a [u8],
) -> Result<SafeTensors<'a>, TrainError> {
    SafeTensors::deserialize(bytes).map_err(|error| TrainError::BadFile {
        path: path.to_owned(),
        kind,
        problem: format!("{error} (cut short, damaged, or another format)"),
    })
}
