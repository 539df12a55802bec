//! The guard around every decision of a hook: a panic closes the preload path instead of ending the program.

use crate::local::local;
use crate::{closing, connection, next, quiet};
use libc::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// PTHREAD_CANCEL_DEFERRED, in which a thread begins.
const DEFERRED: c_int = 0;

/// Runs a hook's decision. A bug in it closes the preload path for the process instead of ending the program.
///
/// A thread of type PTHREAD_CANCEL_ASYNCHRONOUS is cancelled at any instruction, and glibc unwinds it from
/// there. No frame outside of [`apart`] may have a table of handlers: a gap in it ends the process.
#[inline]
pub(super) fn guard<T: Default>(decide: impl FnOnce() -> T) -> T {
    const { assert!(!std::mem::needs_drop::<T>()) };
    if local().is_cancelled_at_once() { undisturbed(decide) } else { apart(decide) }
}

/// As [`guard`] in a thread of another type, for a decision with few system calls, all marked ([`quiet`]).
#[inline]
pub(super) fn caught<T: Default>(decide: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(decide)) {
        Ok(t) => t,
        Err(panic) => {
            // A drop of the payload could panic again. It is small, and leaked once.
            std::mem::forget(panic);
            if let Err(panic) = catch_unwind(closing::turn_off) {
                std::mem::forget(panic);
                connection::stop_reads();
            }
            T::default()
        }
    }
}

#[inline(never)]
fn apart<T: Default>(decide: impl FnOnce() -> T) -> T {
    caught(|| {
        let _inside = quiet::enter();
        decide()
    })
}

/// For a thread of that type: cancellation is deferred until the decision ends, so none of its locks stays
/// taken.
#[cold]
#[inline(never)]
fn undisturbed<T: Default>(decide: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: writes the old type. The second call may unwind: there is no destructor in this frame or its
    // callers.
    unsafe {
        next::pthread_setcanceltype(DEFERRED, &mut before);
        let t = apart(decide);
        next::pthread_setcanceltype(before, &mut before);
        t
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    // A vfork child sets the type of its parent's thread as well.
    if kind != DEFERRED {
        local().cancelled_at_once.set(1);
    }
    // SAFETY: the program's own arguments.
    let ret = unsafe { next::pthread_setcanceltype(kind, before) };
    if kind == DEFERRED && ret == 0 {
        local().cancelled_at_once.set(0);
    }
    ret
}
