//! Start of detached threads of terraced.

/// Starts a detached thread.
pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
