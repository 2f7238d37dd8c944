//! Tests of sleeps and the reusable timer.

use std::future::pending;
use std::time::{Duration, Instant, SystemTime};

use io::Wait;

use super::{run, settle, watch};
use crate::{Elapsed, Timer, counters, fix_wall, now, sleep_until, wall};

const SHORT: Duration = Duration::from_millis(3);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_sleep_ends_at_its_time_and_not_before() {
    run(|fake| async move {
        let deadline = now() + SHORT;
        sleep_until(deadline).await;
        assert!(Instant::now() >= deadline && now() >= deadline);
        let waited = fake.waits();
        let until = waited.iter().any(|wait| matches!(wait, Wait::Until(at) if *at >= deadline));
        assert!(until, "the engine waits with the timer as its deadline: {waited:?}");
        sleep_until(deadline).await;
        assert_eq!(counters().timers, 0);
    });
}

#[test]
fn a_dropped_sleep_leaves_no_timer() {
    run(|_| async {
        let timer = Timer::new();
        timer.set(now() + SHORT);
        assert_eq!(timer.limit(sleep_until(now() + LONG)).await, Err(Elapsed));
        assert_eq!(counters().timers, 0);
    });
}

#[test]
fn a_later_deadline_does_not_change_the_wheel() {
    run(|_| async {
        let timer = Timer::new();
        timer.set(now() + SHORT);
        let deadline = now() + 2 * SHORT;
        timer.set(deadline);
        assert_eq!(counters().timers, 1);
        assert_eq!(timer.limit(pending::<()>()).await, Err(Elapsed));
        assert!(now() >= deadline, "the first entry came out early and was put back");
    });
}

#[test]
fn an_earlier_deadline_applies_immediately() {
    run(|_| async {
        let timer = Timer::new();
        timer.set(now() + LONG);
        timer.set(now() + SHORT);
        assert_eq!(counters().timers, 1);
        assert_eq!(timer.limit(pending::<()>()).await, Err(Elapsed));
    });
}

#[test]
fn a_deadline_can_be_moved_during_its_wait() {
    run(|_| async {
        let timer = Timer::new();
        let waiting = timer.clone();
        let ended = watch(async move { waiting.limit(pending::<()>()).await });
        settle().await;
        timer.set(now() + SHORT);
        sleep_until(now() + 2 * SHORT).await;
        settle().await;
        assert_eq!(ended.take(), Some(Err(Elapsed)));
    });
}

#[test]
fn an_idle_wait_can_be_expired_from_another_handle() {
    run(|_| async {
        let timer = Timer::new();
        timer.set(now() + LONG);
        let listed = timer.clone();
        let ended = watch(async move { timer.limit(pending::<()>()).await });
        settle().await;
        listed.expire_now();
        settle().await;
        assert_eq!(ended.take(), Some(Err(Elapsed)));
        drop(listed);
        assert_eq!(counters().timers, 0, "the last clone takes the entry out");
    });
}

#[test]
fn completed_work_does_not_time_out() {
    run(|_| async {
        let timer = Timer::new();
        timer.set(now());
        assert_eq!(timer.limit(async { 7 }).await, Ok(7), "done at the first look");
        timer.clear();
        assert_eq!(timer.limit(settle()).await, Ok(()));
        timer.expire_now();
        timer.clear();
        assert_eq!(timer.limit(settle()).await, Ok(()));
    });
}

#[test]
fn the_time_of_day_is_constant_within_a_turn() {
    run(|_| async {
        let (first, second) = (wall(), wall());
        assert_eq!(first, second);
        sleep_until(now() + SHORT).await;
        assert!(wall() > first);
    });
}

#[test]
fn a_fixed_time_of_day_stays_in_later_turns() {
    run(|_| async {
        fix_wall(SystemTime::UNIX_EPOCH);
        sleep_until(now() + SHORT).await;
        assert_eq!(wall(), SystemTime::UNIX_EPOCH);
    });
}
