//! A page-aligned buffer for O_DIRECT.

use crate::pages::PAGE;
use std::ops::{Deref, DerefMut};

/// Zeroed bytes, aligned to a page.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let bytes = vec![0u8; len + PAGE];
        let from = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, from, len }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..self.from + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.len]
    }
}
