//! The fast door.
