//! Tests of the directives of the cache.
