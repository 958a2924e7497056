//! Blobs and uploads: whole or not there, whatever happens in between.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hansa_store::{
    BlobStore, Bring, ChunkOutcome, DataDir, Manifest, StoreError, UploadId, Watch, WatchChunk,
    hash_bytes,
};

const CHUNK: u64 = 1000;

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn open(&self) -> (DataDir, BlobStore) {
        let data_dir = DataDir::lock(&self.data()).unwrap();
        let store = BlobStore::open(&data_dir).unwrap();
        (data_dir, store)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("source");
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i * 7 % 251) as u8 ^ (i / 1000) as u8)
        .collect()
}

fn id(text: &str) -> UploadId {
    text.parse().unwrap()
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn what_is_hashed_while_it_is_written_has_the_name_of_the_same_file_read() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(100_000);
    for (chunk_bytes, piece) in [
        (16_384, 4096),
        (16_384, 1000),
        (5000, 1024),
        (1 << 20, 40_960),
    ] {
        let expected = Manifest::of_bytes(&bytes, chunk_bytes).unwrap();
        let length = bytes.len() as u64;
        let writer = store.hashing_writer(length, chunk_bytes).unwrap();
        for (number, part) in bytes.chunks(piece).enumerate().rev() {
            writer.write_all_at(part, (number * piece) as u64).unwrap();
            writer.sync_so_far().unwrap();
        }
        let blob = writer.finish().unwrap();
        assert_eq!(blob.manifest(), &expected, "{chunk_bytes} {piece}");
        blob.verify().unwrap();
        store.remove(blob.hash()).unwrap();
    }
    assert!(store.hashing_writer(1, 0).is_err());
    // A byte that nobody wrote is a zero, as in the file.
    let writer = store.hashing_writer(3000, 1024).unwrap();
    writer.write_all_at(&[7; 1024], 1024).unwrap();
    writer.finish().unwrap().verify().unwrap();
    assert_eq!(entries(&home.data().join("tmp")), 0);
}

#[test]
fn a_large_blob_is_gone_at_once_and_its_bytes_before_the_store_is() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let blob = store.writer(40 << 20).unwrap().finish(16 << 20).unwrap();
    assert!(store.remove(blob.hash()).unwrap());
    assert!(!store.contains(blob.hash()));
    assert!(!store.remove(blob.hash()).unwrap());
    drop(store);
    assert_eq!(entries(&home.data().join("tmp")), 0);
}

#[test]
fn a_store_that_does_not_sync_makes_the_same_blobs() {
    let home = Home::new();
    let data_dir = DataDir::lock(&home.data()).unwrap();
    let store = BlobStore::open_without_sync(&data_dir).unwrap();
    let bytes = content(3500);
    let writer = store.hashing_writer(3500, CHUNK).unwrap();
    writer.write_all_at(&bytes, 0).unwrap();
    let blob = writer.finish().unwrap();
    assert_eq!(blob.manifest(), &Manifest::of_bytes(&bytes, CHUNK).unwrap());
    assert_eq!(store.list().unwrap(), [blob.hash()]);
    store.open_blob(blob.hash()).unwrap().verify().unwrap();
}

#[test]
fn a_file_is_brought_in_once_read_by_chunk_and_removed() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(3500);
    let blob = store
        .put_file(&home.file(&bytes), Bring::Copy, CHUNK)
        .unwrap();
    assert!(home.dir.path().join("source").exists());
    assert_eq!(
        blob.hash(),
        Manifest::of_bytes(&bytes, CHUNK).unwrap().hash()
    );
    let again = store
        .put_file(&home.file(&bytes), Bring::Move, CHUNK)
        .unwrap();
    assert!(!home.dir.path().join("source").exists());
    assert_eq!(again.hash(), blob.hash());
    assert_eq!(store.list().unwrap(), [blob.hash()]);
    assert_eq!(entries(&home.data().join("tmp")), 0);

    let opened = store.open_blob(blob.hash()).unwrap();
    let chunks: Vec<u8> = (0..4).flat_map(|i| opened.read_chunk(i).unwrap()).collect();
    assert_eq!(chunks, bytes);
    assert!(matches!(
        opened.read_chunk(4),
        Err(StoreError::NoChunk {
            index: 4,
            chunks: 4
        })
    ));
    opened.verify().unwrap();

    assert!(store.remove(blob.hash()).unwrap());
    assert!(!store.remove(blob.hash()).unwrap());
    assert!(matches!(
        store.open_blob(blob.hash()),
        Err(StoreError::NoBlob(_))
    ));
    assert_eq!(opened.read_chunk(3).unwrap(), bytes[3000..]);
    assert!(store.list().unwrap().is_empty());
}

#[test]
fn a_writer_makes_a_blob_only_if_it_finishes() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(2500);
    let writer = store.writer(2500).unwrap();
    writer.write_all_at(&bytes[1000..], 1000).unwrap();
    writer.write_all_at(&bytes[..1000], 0).unwrap();
    let blob = writer.finish(CHUNK).unwrap();
    assert_eq!(*blob.manifest(), Manifest::of_bytes(&bytes, CHUNK).unwrap());

    drop(store.writer(2500).unwrap());
    assert_eq!(entries(&home.data().join("tmp")), 0);
    assert_eq!(store.list().unwrap(), [blob.hash()]);
}

#[test]
fn damage_is_named_and_bringing_the_content_in_again_repairs_it() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(3500);
    let hash = store
        .put_file(&home.file(&bytes), Bring::Copy, CHUNK)
        .unwrap()
        .hash();

    let mut flipped = bytes.clone();
    flipped[2100] ^= 4;
    std::fs::write(store.path(hash), &flipped).unwrap();
    let blob = store.open_blob(hash).unwrap();
    for error in [blob.verify().unwrap_err(), blob.read_chunk(2).unwrap_err()] {
        assert!(
            matches!(error, StoreError::DamagedBlob { chunk: 2, .. }),
            "{error:?}"
        );
    }
    store
        .put_file(&home.file(&bytes), Bring::Copy, CHUNK)
        .unwrap()
        .verify()
        .unwrap();

    std::fs::write(store.path(hash), &bytes[..100]).unwrap();
    let error = store.open_blob(hash).unwrap_err();
    assert!(
        matches!(error, StoreError::WrongSize { got_bytes: 100, .. }),
        "{error:?}"
    );

    let manifest = store.path(hash).with_file_name("manifest.json");
    let other = Manifest::of_bytes(b"other", CHUNK).unwrap();
    std::fs::write(&manifest, other.to_json()).unwrap();
    assert!(matches!(
        store.open_blob(hash),
        Err(StoreError::WrongContent { .. })
    ));
    std::fs::write(&manifest, "{").unwrap();
    assert!(matches!(
        store.open_blob(hash),
        Err(StoreError::Manifest { .. })
    ));
}

#[test]
fn leftovers_of_killed_writers_go_at_open_and_uploads_stay() {
    let home = Home::new();
    let (data_dir, store) = home.open();
    let manifest = Manifest::of_bytes(&content(3500), CHUNK).unwrap();
    store.begin_upload(id("kept"), manifest).unwrap();
    // What a kill leaves: nobody ran the destructor.
    std::mem::forget(store.writer(100).unwrap());
    assert_eq!(entries(&home.data().join("tmp")), 1);
    drop((store, data_dir));
    let (_data_dir, store) = home.open();
    assert_eq!(entries(&home.data().join("tmp")), 0);
    assert_eq!(store.list_uploads().unwrap(), [id("kept")]);
}

#[test]
fn an_upload_takes_chunks_in_any_order_from_many_threads_and_completes() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(20_500);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest.clone()).unwrap();
    assert_eq!(upload.missing().len(), 21);
    let put = |index: u32| {
        let (offset, length) = manifest.chunk_range(index).unwrap();
        upload
            .put_chunk(index, &bytes[offset as usize..(offset + length) as usize])
            .unwrap()
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for index in (0..20).rev().filter(|i| i % 4 == thread) {
                    put(index);
                }
            });
        }
    });
    match store.complete_upload(&upload) {
        Err(StoreError::UploadIncomplete { missing, .. }) => assert_eq!(missing, [20]),
        other => panic!("{other:?}"),
    }
    assert_eq!(upload.received_bytes(), 20_000);
    assert_eq!(put(20), ChunkOutcome::Stored);
    assert_eq!(put(20), ChunkOutcome::Known);
    let blob = store.complete_upload(&upload).unwrap();
    assert_eq!(
        (blob.hash(), blob.verify().is_ok()),
        (manifest.hash(), true)
    );
    // Repeated by a client that lost the answer.
    assert_eq!(
        store.complete_upload(&upload).unwrap().hash(),
        manifest.hash()
    );
    assert_eq!(store.list_uploads().unwrap(), []);
    let again = store.begin_upload(id("u"), manifest.clone()).unwrap();
    assert!(again.missing().is_empty());
    assert_eq!(
        store.complete_upload(&again).unwrap().hash(),
        manifest.hash()
    );
}

#[test]
fn a_new_upload_is_not_searched_for_what_cannot_be_there() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    // The reserved space reads as zeros; hashing it all would hold up who begins or ends an upload.
    let manifest = Manifest::of_bytes(&[0; 2500], CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest).unwrap();
    assert_eq!(upload.missing(), [0, 1, 2]);
}

#[test]
fn wrong_chunks_never_count() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(2500);
    let upload = store
        .begin_upload(id("u"), Manifest::of_bytes(&bytes, CHUNK).unwrap())
        .unwrap();
    let mut flipped = bytes[..1000].to_vec();
    flipped[999] ^= 1;
    for wrong in [&flipped[..], &bytes[..999], &bytes[..1001], &[]] {
        assert!(matches!(
            upload.put_chunk(0, wrong),
            Err(StoreError::ChunkMismatch(0))
        ));
    }
    assert!(matches!(
        upload.put_chunk(3, &[]),
        Err(StoreError::NoChunk {
            index: 3,
            chunks: 3
        })
    ));
    assert_eq!(upload.missing(), [0, 1, 2]);
}

#[test]
fn whoever_sends_wrong_bytes_beside_right_ones_or_too_late_spoils_nothing() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(2500);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest).unwrap();
    let mut wrong = upload.chunk_writer(0).unwrap();
    wrong.write(&[7; 400]).unwrap();
    let mut broken_off = upload.chunk_writer(1).unwrap();
    broken_off.write(&[7; 400]).unwrap();

    let mut right = upload.chunk_writer(0).unwrap();
    right.write(&bytes[..300]).unwrap();
    right.write(&bytes[300..1000]).unwrap();
    assert_eq!(right.left_bytes(), 0);
    assert!(matches!(right.finish(), Ok(ChunkOutcome::Stored)));
    assert_eq!(upload.missing(), [1, 2]);
    for result in [wrong.write(&[7; 600]), wrong.finish().map(drop)] {
        assert!(matches!(result, Err(StoreError::ChunkTakenOver(0))));
    }
    assert_eq!(upload.missing(), [1, 2]);

    let mut late = upload.chunk_writer(0).unwrap();
    for (index, chunk) in bytes.chunks(CHUNK as usize).enumerate() {
        upload.put_chunk(index as u32, chunk).unwrap();
    }
    // Before the right bytes of chunk 1 came, part of it was written by who then broke off.
    drop(broken_off);
    let blob = store.complete_upload(&upload).unwrap();
    assert!(late.write(&[7; 1000]).is_err());
    assert!(late.finish().is_err());
    blob.verify().unwrap();
}

#[test]
fn a_chunk_that_broke_off_goes_on_where_it_stopped_and_the_last_who_brings_it_writes() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(1000);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest).unwrap();
    let mut first = upload.chunk_writer(0).unwrap();
    first.write(&bytes[..300]).unwrap();
    // Its connection is dead, but nobody here has noticed.
    assert_eq!(upload.held_bytes(0).unwrap(), 300);
    for from in [301, 1000] {
        let refused = upload.chunk_writer_at(0, from);
        assert!(matches!(
            refused,
            Err(StoreError::WrongOffset { held: 300, .. })
        ));
    }
    // What still came of it after the sender had asked is passed over.
    first.write(&bytes[300..350]).unwrap();
    let mut second = upload.chunk_writer_at(0, 300).unwrap();
    assert!(matches!(
        first.write(&[7; 10]),
        Err(StoreError::ChunkTakenOver(0))
    ));
    drop(first);
    second.write(&bytes[300..340]).unwrap();
    assert_eq!(upload.held_bytes(0).unwrap(), 350);
    second.write(&bytes[340..700]).unwrap();
    assert_eq!(
        (second.left_bytes(), upload.held_bytes(0).unwrap()),
        (300, 700)
    );
    // Its connection seems to be dead; the chunk is sent again.
    let mut third = upload.chunk_writer(0).unwrap();
    third.write(&bytes[..500]).unwrap();
    assert!(matches!(
        second.write(&[7; 300]),
        Err(StoreError::ChunkTakenOver(0))
    ));
    drop(second);
    assert_eq!(
        upload.held_bytes(0).unwrap(),
        500,
        "the third has the chunk"
    );
    third.write(&bytes[500..]).unwrap();
    assert_eq!(third.finish().unwrap(), ChunkOutcome::Stored);
    assert_eq!(upload.held_bytes(0).unwrap(), 1000);
    store.complete_upload(&upload).unwrap().verify().unwrap();
}

#[test]
fn wrong_bytes_of_a_chunk_that_broke_off_are_not_gone_on_from_for_ever() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    let bytes = content(1000);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest).unwrap();
    upload.chunk_writer(0).unwrap().write(&[7; 300]).unwrap();
    let mut second = upload.chunk_writer_at(0, 300).unwrap();
    second.write(&bytes[300..]).unwrap();
    assert!(matches!(second.finish(), Err(StoreError::ChunkMismatch(0))));
    assert_eq!(upload.held_bytes(0).unwrap(), 0);
    assert_eq!(upload.put_chunk(0, &bytes).unwrap(), ChunkOutcome::Stored);
}

/// Remembers the bytes of the chunks that were right, and how often each was.
#[derive(Debug, Default)]
struct Seen(Mutex<BTreeMap<u32, Vec<Vec<u8>>>>);

#[derive(Debug)]
struct SeenChunk(Arc<Seen>, u32, Vec<u8>);

impl Watch for Seen {
    fn chunk(self: Arc<Self>, index: u32, offset: u64) -> Box<dyn WatchChunk> {
        assert_eq!(offset, u64::from(index) * CHUNK);
        Box::new(SeenChunk(self, index, Vec::new()))
    }
}

impl WatchChunk for SeenChunk {
    fn push(&mut self, bytes: &[u8]) {
        self.2.extend_from_slice(bytes);
    }

    fn finish(self: Box<Self>) {
        let mut seen = self.0.0.lock().unwrap();
        seen.entry(self.1).or_default().push(self.2);
    }
}

#[test]
fn who_watches_sees_every_right_chunk_once_whatever_else_comes() {
    let home = Home::new();
    let (data_dir, store) = home.open();
    let bytes = content(2500);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let expected: BTreeMap<u32, Vec<Vec<u8>>> = (0..)
        .zip(bytes.chunks(CHUNK as usize))
        .map(|(index, chunk)| (index, vec![chunk.to_vec()]))
        .collect();
    let seen = Arc::new(Seen::default());
    let begin = |store: &BlobStore, seen: &Arc<Seen>| {
        let watch: Arc<dyn Watch> = seen.clone();
        let resumed = store.resume_upload(&id("u"), |_| Some(watch.clone()));
        resumed.unwrap().unwrap_or_else(|| {
            let begun = store.begin_watched_upload(id("u"), manifest.clone(), Some(watch));
            begun.unwrap()
        })
    };
    let upload = begin(&store, &seen);
    assert!(Arc::ptr_eq(&upload.watch::<Seen>().unwrap(), &seen));
    upload.put_chunk(2, &bytes[2000..]).unwrap();
    upload.put_chunk(2, &bytes[2000..]).unwrap();
    upload.put_chunk(1, &[7; 1000]).unwrap_err();
    upload
        .chunk_writer(1)
        .unwrap()
        .write(&bytes[1000..1600])
        .unwrap();
    let mut rest = upload.chunk_writer_at(1, 400).unwrap();
    rest.write(&bytes[1400..2000]).unwrap();
    rest.finish().unwrap();
    upload
        .chunk_writer(0)
        .unwrap()
        .write(&bytes[..900])
        .unwrap();
    drop((upload, store, data_dir));

    // After a restart it is shown what is there, and then what still comes.
    let (_data_dir, store) = home.open();
    let after = Arc::new(Seen::default());
    let upload = begin(&store, &after);
    assert_eq!(*after.0.lock().unwrap(), *seen.0.lock().unwrap());
    assert_eq!(upload.missing(), [0]);
    upload.put_chunk(0, &bytes[..1000]).unwrap();
    assert_eq!(*after.0.lock().unwrap(), expected);
    store.complete_upload(&upload).unwrap().verify().unwrap();
}

#[test]
fn an_upload_goes_on_after_a_restart_with_what_its_file_really_holds() {
    let home = Home::new();
    let (data_dir, store) = home.open();
    let bytes = content(3500);
    let manifest = Manifest::of_bytes(&bytes, CHUNK).unwrap();
    let upload = store.begin_upload(id("u"), manifest.clone()).unwrap();
    for index in [0, 1, 3] {
        let (offset, length) = manifest.chunk_range(index).unwrap();
        let (offset, length) = (offset as usize, length as usize);
        upload
            .put_chunk(index, &bytes[offset..offset + length])
            .unwrap();
    }
    drop((upload, store, data_dir));
    // A power cut took part of chunk 1.
    let data = home.data().join("uploads/u/data");
    let mut on_disk = std::fs::read(&data).unwrap();
    on_disk[1500..2000].fill(0);
    std::fs::write(&data, on_disk).unwrap();

    let (_data_dir, store) = home.open();
    let other = Manifest::of_bytes(b"other", CHUNK).unwrap();
    let conflict = store.begin_upload(id("u"), other.clone()).unwrap_err();
    assert!(matches!(conflict, StoreError::UploadConflict(_)));
    let upload = store.begin_upload(id("u"), manifest).unwrap();
    assert_eq!(upload.missing(), [1, 2]);
    assert!(matches!(
        store.begin_upload(id("u"), other),
        Err(StoreError::UploadConflict(_))
    ));
    upload.put_chunk(1, &bytes[1000..2000]).unwrap();
    upload.put_chunk(2, &bytes[2000..3000]).unwrap();
    store.complete_upload(&upload).unwrap().verify().unwrap();
}

#[test]
fn an_aborted_upload_leaves_nothing_and_an_empty_one_completes() {
    let home = Home::new();
    let (_data_dir, store) = home.open();
    store
        .begin_upload(id("u"), Manifest::of_bytes(&content(10), CHUNK).unwrap())
        .unwrap();
    assert!(store.abort_upload(&id("u")).unwrap());
    assert!(!store.abort_upload(&id("u")).unwrap());
    assert!(store.upload(&id("u")).is_none());
    assert_eq!(store.list_uploads().unwrap(), []);

    let empty = store
        .begin_upload(id("e"), Manifest::of_bytes(&[], CHUNK).unwrap())
        .unwrap();
    assert_eq!(
        store
            .complete_upload(&empty)
            .unwrap()
            .manifest()
            .total_bytes(),
        0
    );
}

#[test]
fn names_that_could_leave_the_store_are_refused() {
    for bad in ["", ".", "..", "a/b", "a.b", "é", &"x".repeat(101)] {
        assert!(bad.parse::<UploadId>().is_err(), "{bad}");
    }
    assert_eq!(UploadId::from(hash_bytes(b"x")).to_string().len(), 64);
}
