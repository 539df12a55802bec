//! Answers to writes which the kernel's page cache must forget something for first.
//!
//! Not by threads that answer requests: forgetting waits for reads that are under way. It needs threads of its own so rarely that each write
//! gets new ones, and none that waits keeps another.

use std::io;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Namespace, PageCache};
use fuser::ReplyWrite;

const PAGE: u64 = 4096;
/// An answer does not wait longer: whatever the kernel holds may be waiting for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// A write that is done, of whose range the kernel's page cache may have older content.
struct Late<C: PageCache> {
    namespace: Arc<Namespace<C>>,
    nodeid: u64,
    range: Range<u64>,
    reply: ReplyWrite,
}

/// Answers such a write when the older content is gone.
pub(super) fn answer<C: PageCache>(
    namespace: &Arc<Namespace<C>>,
    nodeid: u64,
    range: Range<u64>,
    reply: ReplyWrite,
) {
    let late = Late { namespace: namespace.clone(), nodeid, range, reply };
    let late = Arc::new(Mutex::new(Some(late)));
    let take = |late: &Mutex<Option<Late<C>>>| late.lock().expect("nobody panics with it").take();
    let its = late.clone();
    if let Err(err) = spawn(move || take(&its).into_iter().for_each(Late::run))
        && let Some(late) = take(&late)
    {
        tracing::error!("no thread to make the kernel forget what a write has changed: {err}");
        late.reply.written(length(&late.range));
    }
}

impl<C: PageCache> Late<C> {
    fn run(self) {
        let Late { namespace, nodeid, range, reply } = self;
        let (first, last) = (range.start.next_multiple_of(PAGE), range.end / PAGE * PAGE);
        let (done, is_done) = channel();
        let its = namespace.clone();
        let forget = move || {
            its.invalidate_content(nodeid, first..last.max(first));
            let _ = done.send(());
        };
        if let Err(err) =
            spawn(forget).and_then(|()| is_done.recv_timeout(PATIENCE).map_err(io::Error::other))
        {
            tracing::error!(
                "inode {nodeid}: a write is answered before the kernel has forgotten what was there: {err}"
            );
        }
        reply.written(length(&range));
        // Of a page that the write covers in part, the kernel may have held the lock until now.
        if range.start < first {
            namespace.invalidate_content(nodeid, range.start..range.start + 1);
        }
        if last < range.end && last >= first {
            namespace.invalidate_content(nodeid, range.end - 1..range.end);
        }
    }
}

/// A request has at the most a megabyte.
fn length(range: &Range<u64>) -> u32 {
    (range.end - range.start) as u32
}

fn spawn(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("late-answer".into()).spawn(act).map(drop)
}
