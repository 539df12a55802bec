//! Reads of a cold file in predictable and unpredictable orders: the load for readahead.

use crate::buffer::Buffer;
use crate::pages::{self, PAGE};
use crate::pattern::{Pages, Pattern};
use crate::reader::{Common, Reader, refuse};
use clap::Args;
use fastrand::Rng;
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

/// Options of the load.
#[derive(Clone, Debug, Args)]
pub struct Cold {
    #[arg(long)]
    file: PathBuf,
    /// sequential; streams:N, readers of one file in turn; stride:PAGES; random; zipf:THETA; normal:DEV.
    #[arg(long)]
    order: Order,
    /// Number of reads.
    #[arg(long)]
    ops: u64,
    /// Pages of 4 KiB of each read; the order is one of such pieces.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pages: u64,
    /// Announce the order by posix_fadvise.
    #[arg(long)]
    advise: bool,
    #[command(flatten)]
    common: Common,
}

/// The order of the reads.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Streams(u64),
    Stride(u64),
    Drawn(Pattern),
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Order, String> {
        let number =
            |n: &str| n.parse().ok().filter(|&n: &u64| n > 0).ok_or_else(|| format!("{n:?} is no number"));
        match text.split_once(':') {
            None if text == "sequential" => Ok(Order::Streams(1)),
            Some(("streams", n)) => number(n).map(Order::Streams),
            Some(("stride", n)) => number(n).map(Order::Stride),
            _ => text.parse().map(Order::Drawn),
        }
    }
}

impl Order {
    /// The pages of `ops` reads of a file of `of` pages.
    fn pages(self, ops: u64, of: u64, seed: u64) -> Box<dyn Iterator<Item = u64>> {
        match self {
            Order::Streams(n) => Box::new((0..ops).map(move |i| i % n * (of / n) + i / n % (of / n))),
            // After each pass the stride continues one page further.
            Order::Stride(step) => Box::new((0..ops).map(move |i| {
                let round = of.div_ceil(step);
                (i % round * step + i / round) % of
            })),
            Order::Drawn(pattern) => {
                let (pages, mut rng) = (Pages::new(pattern, of), Rng::with_seed(seed));
                Box::new((0..ops).map(move |_| pages.draw(&mut rng)))
            }
        }
    }

    fn advice(self) -> i32 {
        match self {
            Order::Streams(_) => libc::POSIX_FADV_SEQUENTIAL,
            Order::Stride(_) => libc::POSIX_FADV_NORMAL,
            Order::Drawn(_) => libc::POSIX_FADV_RANDOM,
        }
    }
}

/// Result of the load.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    ops: u64,
    reads_per_s: f64,
    /// Pages checked in full, after the timed part.
    checked: u64,
}

/// Reads, checks the number of every page, and a sample in full.
///
/// # Errors
/// A failed read; wrong data.
pub fn run(o: &Cold) -> io::Result<Outcome> {
    let file = Reader::open(&o.file, false)?;
    let pieces: Vec<u64> = o.order.pages(o.ops, file.pages() / o.pages, o.common.seed).collect();
    if o.advise {
        file.advise(o.order.advice());
    }
    let bytes = o.pages as usize * PAGE;
    let mut buf = Buffer::new(bytes);
    let mut wrong = 0_u64;
    let began = Instant::now();
    for &piece in &pieces {
        file.read(&mut buf[..bytes], piece * bytes as u64)?;
        let all = (piece * o.pages..).zip(buf[..bytes].chunks_exact(PAGE));
        wrong += all.filter(|(page, content)| !pages::looks_right(*page, content)).count() as u64;
    }
    let took = began.elapsed();
    refuse(wrong)?;
    let checked = file.check_pages(&o.common, pieces.iter().rev().take(2048).map(|piece| piece * o.pages))?;
    Ok(Outcome { ops: o.ops, reads_per_s: o.ops as f64 / took.as_secs_f64(), checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_visit_each_page_once() {
        for order in ["sequential", "streams:4", "stride:16"] {
            let order: Order = order.parse().unwrap();
            let mut pages: Vec<u64> = order.pages(160, 160, 1).collect();
            pages.sort_unstable();
            assert_eq!(pages, (0..160).collect::<Vec<_>>(), "{order:?}");
        }
        let order: Order = "streams:2".parse().unwrap();
        assert_eq!(order.pages(4, 100, 1).collect::<Vec<_>>(), [0, 50, 1, 51]);
        let order: Order = "stride:30".parse().unwrap();
        assert_eq!(order.pages(6, 100, 1).collect::<Vec<_>>(), [0, 30, 60, 90, 1, 31]);
        assert!("streams:0".parse::<Order>().is_err() && "stride".parse::<Order>().is_err());
    }
}
