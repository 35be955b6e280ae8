// As expect-test writes them.
#![allow(clippy::needless_raw_string_hashes)]

mod failures;
mod kueue;
mod lifecycle;
mod nodes;
mod words;
mod world;
