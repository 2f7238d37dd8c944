//! Tests of the runtime over a scripted engine.
