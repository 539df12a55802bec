//! Pure decisions of the terrace page cache.
