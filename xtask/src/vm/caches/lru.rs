//! An LRU of pages: which requests it does not answer.

use std::collections::{BTreeMap, HashMap};

/// The requests that miss in an LRU of `size` pages, in their order.
pub fn misses(pages: &[u32], size: usize) -> Vec<u32> {
    // By page, when it was last used; and the same the other way round.
    let (mut used, mut order) = (HashMap::new(), BTreeMap::new());
    let mut misses = Vec::new();
    for (now, &page) in pages.iter().enumerate() {
        match used.insert(page, now) {
            Some(before) => {
                order.remove(&before);
            }
            None => misses.push(page),
        }
        order.insert(now, page);
        if order.len() > size
            && let Some((_, oldest)) = order.pop_first()
        {
            used.remove(&oldest);
        }
    }
    misses
}

#[cfg(test)]
mod tests {
    use super::misses;

    #[test]
    fn least_recently_used_page_leaves() {
        assert_eq!(misses(&[1, 2, 1, 3, 1, 2], 2), [1, 2, 3, 2]);
        assert_eq!(misses(&[1, 1, 2, 2], 0), [1, 1, 2, 2]);
        assert_eq!(misses(&[1, 2, 3, 1, 2, 3], 3), [1, 2, 3]);
    }
}
