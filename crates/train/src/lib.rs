//! The embedded trainer: a Qwen3 decoder with explicit backward, AdamW and its schedule.
