//! Retry of a thread's failed work: it logs the first error, then pauses before each new try.

use crate::error::Result;
use std::time::{Duration, Instant};

/// Pause after a failure. Also the longest wait for a wake-up.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Time of the last failure, if the last try failed.
#[derive(Debug, Default)]
pub(crate) struct Retry(Option<Instant>);

impl Retry {
    /// The rest of the pause. None: the last try succeeded.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|failed| PAUSE.saturating_sub(failed.elapsed()))
    }

    pub(crate) fn pauses(&self) -> bool {
        self.left().is_some_and(|left| !left.is_zero())
    }

    /// Records the result of a try.
    pub(crate) fn note(&mut self, result: &Result<()>) {
        if let Err(e) = result
            && self.0.is_none()
        {
            tracing::error!("{e}; the store tries again every second");
        }
        self.0 = result.is_err().then(Instant::now);
    }
}
