//! Tests of the public interface: against a model, across restarts, crashes and power cuts.

mod basics;
mod crashes;
mod damage;
mod faults;
mod helpers;
mod memory;
mod model;
mod persist;
mod power;
mod power_io;
mod starts;
