//! Plots as SVG, without scripts, fonts or anything to fetch: panels of bars with intervals and panels of curves, in colours, hatchings and
//! marks that the colour-blind can tell apart, light and dark.
//!
//! [`panel`] on [`axis`] makes a [`picture`]; [`palette`] and [`text`] serve all.

pub mod axis;
pub mod palette;
pub mod panel;
pub mod picture;
pub mod text;
