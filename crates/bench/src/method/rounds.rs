//! Things that are compared are measured in turn: A B C A B C, never A A B B, so that what drifts on the machine
//! (temperature, neighbours, free memory) drifts for all of them.

use crate::context::Bench;
use crate::failure::Failure;

/// Measures each of `variants` once in every round; returns what was measured, by variant, in the order of the rounds.
pub(crate) fn in_turns<V, M>(
    bench: &Bench,
    variants: &mut [V],
    mut measure: impl FnMut(&mut V, u32) -> Result<M, Failure>,
) -> Result<Vec<Vec<M>>, Failure> {
    let mut measured: Vec<Vec<M>> = variants.iter().map(|_| Vec::new()).collect();
    for round in 0..bench.repetitions() {
        for (variant, results) in variants.iter_mut().zip(&mut measured) {
            bench.check_interrupted()?;
            bench.progress.tick();
            results.push(measure(variant, round)?);
        }
    }
    Ok(measured)
}
