//! The steps of the reaction.

use clap::Args;

/// Parameters of the reaction.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Reaction {
    /// Diffusion of u.
    #[arg(long = "du", default_value_t = 0.2)]
    du: f64,
    /// Diffusion of v.
    #[arg(long = "dv", default_value_t = 0.1)]
    dv: f64,
    /// Feed rate.
    #[arg(short = 'F', long = "feed", default_value_t = 0.01)]
    feed: f64,
    /// Kill rate.
    #[arg(short = 'k', long = "kill", default_value_t = 0.05)]
    kill: f64,
    /// Length of a step.
    #[arg(long, default_value_t = 2.0)]
    dt: f64,
    /// Amplitude of the noise in u.
    #[arg(long, default_value_t = 0.01)]
    noise: f64,
    /// Seed of the noise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One substance: a cube of cells, x fastest.
pub(super) type Field = [f64];

/// The state of a simulation.
pub(super) struct Solver {
    size: usize,
    reaction: Reaction,
    step: u64,
    now: [Vec<f64>; 2],
    next: [Vec<f64>; 2],
}

impl Solver {
    /// All is u, but for a cube of six cells in the middle.
    pub(super) fn new(size: usize, reaction: Reaction) -> Solver {
        let cells = size * size * size;
        let (mut u, mut v) = (vec![1.0; cells], vec![0.0; cells]);
        let middle = size / 2 - 3..size / 2 + 3;
        for z in middle.clone() {
            for y in middle.clone() {
                let row = (z * size + y) * size;
                u[row + middle.start..row + middle.end].fill(0.25);
                v[row + middle.start..row + middle.end].fill(0.33);
            }
        }
        Solver { size, reaction, step: 0, now: [u, v], next: [vec![0.0; cells], vec![0.0; cells]] }
    }

    pub(super) fn u(&self) -> &Field {
        &self.now[0]
    }

    pub(super) fn v(&self) -> &Field {
        &self.now[1]
    }

    /// One step; each thread does some planes.
    pub(super) fn step(&mut self, threads: usize) {
        let plane = self.size * self.size;
        let planes = self.size.div_ceil(threads);
        let [u, v] = &mut self.next;
        let slabs = u.chunks_mut(planes * plane).zip(v.chunks_mut(planes * plane));
        let (now, size, reaction, step) = (&self.now, self.size, &self.reaction, self.step);
        std::thread::scope(|scope| {
            for (n, (u, v)) in slabs.enumerate() {
                scope.spawn(move || {
                    let slab = u.chunks_mut(plane).zip(v.chunks_mut(plane));
                    for (z, (u, v)) in slab.enumerate() {
                        plane_of(now, size, reaction, step, n * planes + z, (u, v));
                    }
                });
            }
        });
        std::mem::swap(&mut self.now, &mut self.next);
        self.step += 1;
    }
}

/// The next state of the plane `z`.
fn plane_of(
    [u, v]: &[Vec<f64>; 2],
    size: usize,
    reaction: &Reaction,
    step: u64,
    z: usize,
    (u_next, v_next): (&mut [f64], &mut [f64]),
) {
    let Reaction { du, dv, feed, kill, dt, noise, seed } = *reaction;
    let below = |i: usize| if i == 0 { size - 1 } else { i - 1 };
    let above = |i: usize| if i + 1 == size { 0 } else { i + 1 };
    let first = step * (size as u64).pow(3);
    for y in 0..size {
        let row = |z: usize, y: usize| (z * size + y) * size;
        let here = row(z, y);
        let rows = [row(z, below(y)), row(z, above(y)), row(below(z), y), row(above(z), y)];
        for x in 0..size {
            // The order of the additions is part of the result.
            let laplacian = |f: &[f64]| {
                let sum = f[here + below(x)] + f[here + above(x)];
                let sum = rows.iter().fold(sum, |sum, row| sum + f[row + x]);
                (sum - 6.0 * f[here + x]) / 6.0
            };
            let (u_here, v_here) = (u[here + x], v[here + x]);
            let reacted = u_here * v_here * v_here;
            let random = uniform(seed, first + (here + x) as u64);
            let du_dt = du * laplacian(u) - reacted + feed * (1.0 - u_here) + noise * random;
            let dv_dt = dv * laplacian(v) + reacted - (feed + kill) * v_here;
            u_next[y * size + x] = u_here + du_dt * dt;
            v_next[y * size + x] = v_here + dv_dt * dt;
        }
    }
}

/// A number of [-1, 1) that depends on the seed and the cell of a step alone (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
fn uniform(seed: u64, n: u64) -> f64 {
    let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 31;
    (x >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACTION: Reaction =
        Reaction { du: 0.2, dv: 0.1, feed: 0.01, kill: 0.05, dt: 2.0, noise: 0.01, seed: 1 };

    fn after(steps: u64, threads: usize, reaction: Reaction) -> Solver {
        let mut solver = Solver::new(12, reaction);
        (0..steps).for_each(|_| solver.step(threads));
        solver
    }

    #[test]
    fn state_does_not_depend_on_the_threads() {
        let one = after(20, 1, REACTION);
        for threads in [2, 5, 12, 40] {
            assert!(after(20, threads, REACTION).now == one.now, "{threads} threads");
        }
        assert!(after(20, 1, Reaction { seed: 2, ..REACTION }).now != one.now);
    }

    #[test]
    fn diffusion_alone_keeps_the_amount() {
        let still = Reaction { feed: 0.0, kill: 0.0, noise: 0.0, ..REACTION };
        let mut solver = Solver::new(12, still);
        solver.now[1].fill(0.0);
        let before: f64 = solver.u().iter().sum();
        (0..50).for_each(|_| solver.step(2));
        let after: f64 = solver.u().iter().sum();
        assert!((before - after).abs() < 1e-9 * before, "{before} {after}");
        let spread =
            solver.u().iter().fold((f64::MAX, f64::MIN), |(low, high), u| (low.min(*u), high.max(*u)));
        assert!(spread.0 > 0.3 && spread.1 < 1.0, "{spread:?}");
    }

    #[test]
    fn noise_is_uniform() {
        let mean: f64 = (0..100_000).map(|n| uniform(7, n)).sum::<f64>() / 100_000.0;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((0..100_000).all(|n| (-1.0..1.0).contains(&uniform(7, n))));
    }
}
