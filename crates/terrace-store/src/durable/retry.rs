//! What a thread does about work that fails: it says so once, and leaves the work alone for a while.

use crate::error::Result;
use std::time::{Duration, Instant};

/// How long work that has failed is left alone, and after which a thread looks without a wake-up.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// When the work failed last, if it did.
#[derive(Debug, Default)]
pub(crate) struct Retry(Option<Instant>);

impl Retry {
    /// How much longer the work is left alone, zero in the end; None: it has not failed.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|failed| PAUSE.saturating_sub(failed.elapsed()))
    }

    /// Whether the work is still to be left alone.
    pub(crate) fn pauses(&self) -> bool {
        self.left().is_some_and(|left| !left.is_zero())
    }

    /// Notes how a try ended.
    pub(crate) fn note(&mut self, result: &Result<()>) {
        if let Err(e) = result
            && self.0.is_none()
        {
            tracing::error!("{e}; tried again every second");
        }
        self.0 = result.is_err().then(Instant::now);
    }
}
