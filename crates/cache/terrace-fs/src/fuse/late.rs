//! Delayed answers to writes: the kernel first drops older pages of the written range.
//!
//! Dropping waits for reads under way, so the threads that answer requests must not do it. Such a write is
//! rare: it starts two threads of its own, and delays no other write.

use std::io;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Namespace, PageCache};
use fuser::ReplyWrite;

const PAGE: u64 = 4096;
/// Longest delay of an answer. The drop may wait for a lock while its holder waits for this answer.
const ANSWER_DELAY_MAX: Duration = Duration::from_secs(1);

/// A finished write. The kernel's page cache may have older content of its range.
struct Late<C: PageCache> {
    namespace: Arc<Namespace<C>>,
    nodeid: u64,
    range: Range<u64>,
    reply: ReplyWrite,
}

/// Answers such a write after the older content is dropped.
pub(super) fn answer<C: PageCache>(
    namespace: &Arc<Namespace<C>>,
    nodeid: u64,
    range: Range<u64>,
    reply: ReplyWrite,
) {
    let late = Late { namespace: namespace.clone(), nodeid, range, reply };
    let late = Arc::new(Mutex::new(Some(late)));
    let take = |late: &Mutex<Option<Late<C>>>| late.lock().expect("no holder panics").take();
    let its = late.clone();
    if let Err(err) = spawn(move || take(&its).into_iter().for_each(Late::run))
        && let Some(late) = take(&late)
    {
        tracing::error!("no thread can be started ({err}): the kernel may show data older than a write");
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
            spawn(forget).and_then(|()| is_done.recv_timeout(ANSWER_DELAY_MAX).map_err(io::Error::other))
        {
            tracing::error!(
                "inode {nodeid}: the kernel keeps data older than a write, and programs may read them ({err})"
            );
        }
        reply.written(length(&range));
        // The kernel may have held the lock of a partly written page until the answer.
        if range.start < first {
            namespace.invalidate_content(nodeid, range.start..range.start + 1);
        }
        if last < range.end && last >= first {
            namespace.invalidate_content(nodeid, range.end - 1..range.end);
        }
    }
}

/// A request has at most 1 MiB.
fn length(range: &Range<u64>) -> u32 {
    (range.end - range.start) as u32
}

fn spawn(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("late-answer".into()).spawn(act).map(drop)
}
