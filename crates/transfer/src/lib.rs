//! Chunked, hashed, resumable, parallel HTTP upload and download.
