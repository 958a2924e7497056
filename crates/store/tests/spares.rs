//! Files of removed blobs are written over, and never while somebody could see it.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt as _;

use hansa_store::{Blob, BlobStore, DataDir, Manifest, UploadId};

/// Long enough to be worth writing over.
const LONG: usize = 2 << 20;

fn open(home: &tempfile::TempDir) -> BlobStore {
    BlobStore::open(&DataDir::lock(home.path()).unwrap()).unwrap()
}

fn id(text: &str) -> UploadId {
    text.parse().unwrap()
}

/// A blob of so many bytes of this value, written in one go.
fn long_blob(store: &BlobStore, value: u8, length: usize) -> Blob {
    let writer = store.hashing_writer(length as u64, 1 << 20).unwrap();
    writer.write_all_at(&vec![value; length], 0).unwrap();
    writer.finish().unwrap()
}

fn inode(store: &BlobStore, blob: &Blob) -> u64 {
    std::fs::metadata(store.path(blob.hash())).unwrap().ino()
}

fn first_byte(blob: &Blob) -> u8 {
    let mut byte = [0];
    blob.read_exact_at(&mut byte, 0).unwrap();
    byte[0]
}

#[test]
fn the_file_of_a_removed_blob_is_written_over_by_the_next_of_about_its_length() {
    let home = tempfile::tempdir().unwrap();
    let store = open(&home);
    for (length, next_length) in [(LONG, LONG), (LONG, LONG + 9), (LONG + 9, LONG)] {
        let old = long_blob(&store, 1, length);
        let file = inode(&store, &old);
        assert!(store.remove(old.hash()).unwrap());
        drop(old);
        let short = long_blob(&store, 2, LONG / 2);
        assert_ne!(inode(&store, &short), file, "much too long for it");
        let new = long_blob(&store, 3, next_length);
        assert_eq!(inode(&store, &new), file);
        new.verify().unwrap();
        let bytes = std::fs::read(store.path(new.hash())).unwrap();
        assert_eq!(bytes, vec![3; next_length]);
        store.remove(short.hash()).unwrap();
        drop((short, new));
        let all = store.list().unwrap();
        all.iter().for_each(|&hash| drop(store.remove(hash)));
    }
}

#[test]
fn what_somebody_reads_or_names_elsewhere_is_not_written_over() {
    let home = tempfile::tempdir().unwrap();
    let store = open(&home);
    let read = long_blob(&store, 1, LONG);
    store.remove(read.hash()).unwrap();

    // Another process that serves or copies the directory.
    let copied = long_blob(&store, 2, LONG);
    let elsewhere = hansa_store::open_blob_in(home.path(), copied.hash()).unwrap();
    store.remove(copied.hash()).unwrap();
    drop(copied);

    let linked = long_blob(&store, 3, LONG);
    let name = home.path().join("a copy of mine");
    std::fs::hard_link(store.path(linked.hash()), &name).unwrap();
    store.remove(linked.hash()).unwrap();
    drop(linked);

    let new = long_blob(&store, 9, LONG);
    assert_eq!((first_byte(&read), first_byte(&elsewhere)), (1, 2));
    assert_eq!(std::fs::read(&name).unwrap(), vec![3; LONG]);
    assert_eq!(first_byte(&new), 9);
}

#[test]
fn a_request_that_outlives_its_upload_writes_into_no_other_blob() {
    let home = tempfile::tempdir().unwrap();
    let store = open(&home);
    let late = vec![1; LONG];
    let manifest = Manifest::of_bytes(&late, LONG as u64).unwrap();
    let upload = store.begin_upload(id("late"), manifest).unwrap();
    let mut writer = upload.chunk_writer(0).unwrap();
    drop(upload);
    assert!(store.abort_upload(&id("late")).unwrap());
    let blob = long_blob(&store, 2, LONG);
    writer.write(&late).unwrap();
    drop(writer);
    blob.verify().unwrap();

    // Chunks that somebody sent before count for nothing in an upload that gets the file.
    store.remove(blob.hash()).unwrap();
    drop(blob);
    let fresh = vec![3; LONG];
    let manifest = Manifest::of_bytes(&fresh, 1000).unwrap();
    let upload = store.begin_upload(id("fresh"), manifest.clone()).unwrap();
    assert_eq!(upload.missing().len(), manifest.chunk_count() as usize);
}
