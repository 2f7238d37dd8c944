//! What is told of the measurements of `bench nop`: tables, a plot, and what became of the write-up's claims.

use io::bare::RingSetup;

use super::subject::{Figure, Place, Subject, Way};
use super::{BATCH_COMPARED, BATCH_OF_WRITE_UP, BATCHES_FEW, Measured, Options, READ_BYTES, alone, left_out};
use crate::report::model::{Axis, AxisScale, Cell, Finding, Plot, Section, Series, Table, Verdict};
use crate::scenario::figures::{cell, column, middle, ratio_cell, row, series};

/// The share of the bare ring's rate that the engine is meant to reach.
const ENGINE_SHARE_WANTED: f64 = 0.80;
/// Differences below this are not told apart.
// Repetitions of one figure lie further apart than this on a machine that is shared with others.
const NOTEWORTHY: f64 = 0.05;

type Figures = Result<Vec<f64>, String>;

impl Measured {
    /// Operations a second, round by round.
    fn rates(&self, subject: &Subject) -> Figures {
        series(&self.rounds(subject), Figure::per_second)
    }

    /// Time of an operation, round by round.
    fn nanoseconds(&self, subject: &Subject) -> Figures {
        series(&self.rounds(subject), Figure::nanoseconds)
    }

    /// System calls for each operation, round by round.
    fn entries(&self, subject: &Subject) -> Figures {
        series(&self.rounds(subject), Figure::entries_per_operation)
    }
}

/// The least ring that there is.
fn plain(batch: u32) -> Subject {
    Subject::Ring { setup: RingSetup::plain(batch), batch }
}

/// The ring that the engine's share is told of: the same flags, so that only the code around it differs.
fn bare(batch: u32) -> Subject {
    Subject::Ring { setup: RingSetup::as_engine(batch), batch }
}

/// The same through the contract.
fn engine(batch: u32) -> Subject {
    Subject::Engine { batch }
}

/// The part of the report.
pub(super) fn section(measured: &Measured, options: &Options, place: Place) -> Section {
    Section {
        scenario: "nop".to_owned(),
        title: "No-op requests: what an operation costs before it does anything".to_owned(),
        seed: Some("003".to_owned()),
        question: "How many empty operations does one processor get through the ring, what do the ring's set-up flags \
                   change, and what does this server's engine add?"
            .to_owned(),
        tables: vec![
            as_write_up(measured),
            by_batch(measured, options),
            flags(measured, "Set-up flags, each alone", &|batch| alone(batch, place)),
            flags(measured, "This server's set-up flags, one left out", &left_out),
            slots(measured),
            beside_libaio(measured),
        ],
        plots: vec![plot(measured, options)],
        findings: findings(measured),
        ..Section::default()
    }
}

/// The write-up's form: a total and a rate for each variant. Its rows are kernels and patches; one machine has one
/// kernel, so that ours are the ways of using it.
fn as_write_up(measured: &Measured) -> Table {
    let batch = BATCH_OF_WRITE_UP;
    let line = |name: &str, subject: &Subject| {
        let total = series(&measured.rounds(subject), |figure| figure.operations);
        row(name, vec![cell(&total, 0), cell(&measured.rates(subject), 0)])
    };
    Table {
        title: "No-ops through the ring, batches of 16, one pinned processor".to_owned(),
        columns: vec![column("total ios", ""), column("IOPS", "1/s")],
        rows: vec![
            line("this kernel, ring without flags", &plain(batch)),
            line("this kernel, ring set up as this server's", &bare(batch)),
            line("this server's engine", &engine(batch)),
            line("this server's engine, fresh slots (batches of 64)", &Subject::Slots { fresh: true }),
            line("this server's engine, slots used again (batches of 64)", &Subject::Slots { fresh: false }),
        ],
    }
}

/// What a batch saves, and how much of the bare ring's rate is left with the engine around it.
fn by_batch(measured: &Measured, options: &Options) -> Table {
    let line = |&batch: &u32| {
        let rates = [plain(batch), bare(batch), engine(batch)].map(|subject| measured.rates(&subject));
        let mut cells: Vec<Cell> = rates.iter().map(|rates| cell(rates, 0)).collect();
        cells.push(ratio_cell(&rates[2], &rates[1], 2));
        cells.push(cell(&measured.entries(&engine(batch)), 3));
        row(batch.to_string(), cells)
    };
    Table {
        title: "No-ops by batch: the bare ring, and this server's engine over it".to_owned(),
        columns: vec![
            column("ring without flags", "1/s"),
            column("ring set up as this server's", "1/s"),
            column("engine", "1/s"),
            column("engine / ring", ""),
            column("engine's system calls per operation", ""),
        ],
        rows: options.batch.iter().map(line).collect(),
    }
}

type Setups<'a> = &'a dyn Fn(u32) -> Vec<(&'static str, RingSetup)>;

/// A row for each set of flags, with the first one as the measure of the others.
fn flags(measured: &Measured, title: &str, setups: Setups<'_>) -> Table {
    // The names are the same for every batch; only the queue's size is not.
    let names = setups(1).into_iter().map(|(name, _)| name);
    let mut columns = Vec::new();
    for batch in BATCHES_FEW {
        columns.push(column(&format!("batch of {batch}"), "ns"));
        columns.push(column(&format!("batch of {batch}, of the first row"), ""));
    }
    let line = |(index, name): (usize, &'static str)| {
        let mut cells = Vec::new();
        for batch in BATCHES_FEW {
            let setups = setups(batch);
            let time = |index: usize| measured.nanoseconds(&Subject::Ring { setup: setups[index].1, batch });
            cells.push(cell(&time(index), 1));
            cells.push(ratio_cell(&time(index), &time(0), 2));
        }
        row(name, cells)
    };
    Table { title: format!("{title}: time of a no-op"), columns, rows: names.enumerate().map(line).collect() }
}

/// The counterpart of the write-up's request cache: there the kernel's memory of a request is used again, here ours.
fn slots(measured: &Measured) -> Table {
    let line = |name: &str, subject: &Subject| {
        let time = measured.nanoseconds(subject);
        let first = measured.nanoseconds(&Subject::Slots { fresh: true });
        row(name, vec![cell(&time, 1), ratio_cell(&time, &first, 2)])
    };
    Table {
        title: "The engine's slots: time of a no-op, 16384 in flight".to_owned(),
        columns: vec![column("time", "ns"), column("of the first row", "")],
        rows: vec![
            line("fresh: the table grows", &Subject::Slots { fresh: true }),
            line("used again: the table is there", &Subject::Slots { fresh: false }),
            line("used again and in the cache: 64 in flight", &engine(BATCH_COMPARED)),
        ],
    }
}

/// The write-up's question whether the ring stays slimmer than libaio. libaio has no no-op (`IOCB_CMD_NOOP` has a number
/// and no code in the kernel), so that both read: nothing at all, which is nearest to one, and a page in memory.
fn beside_libaio(measured: &Measured) -> Table {
    let ways = [
        ("ring without flags", Way::Ring),
        ("ring as this server's", Way::RingAsEngine),
        ("libaio", Way::Libaio),
        ("libaio, completions from shared memory", Way::LibaioReaping),
    ];
    let mut rows = Vec::new();
    for bytes in READ_BYTES {
        let what = if bytes == 0 { "read of no bytes" } else { "read of a page in memory" };
        for (name, way) in ways {
            let mut cells = Vec::new();
            for batch in BATCHES_FEW {
                let subject = Subject::Read { way, bytes, batch };
                cells.push(cell(&measured.nanoseconds(&subject), 1));
                cells.push(cell(&measured.entries(&subject), 3));
            }
            rows.push(row(format!("{what}: {name}"), cells));
        }
    }
    let mut columns = Vec::new();
    for batch in BATCHES_FEW {
        columns.push(column(&format!("batch of {batch}"), "ns"));
        columns.push(column(&format!("batch of {batch}: system calls per operation"), ""));
    }
    Table { title: "libaio beside the ring, which alone has a no-op".to_owned(), columns, rows }
}

/// Rates by batch.
fn plot(measured: &Measured, options: &Options) -> Plot {
    let line = |name: &str, subject: fn(u32) -> Subject| {
        let mut points: Vec<[f64; 2]> = Vec::new();
        // A line goes from left to right, in whichever order the batches were asked for.
        let mut batches = options.batch.clone();
        batches.sort_unstable();
        for batch in batches {
            let rate = middle(&measured.rates(&subject(batch)));
            points.extend(rate.map(|rate| [f64::from(batch), rate]));
        }
        Series { name: name.to_owned(), points }
    };
    let axis = |name: &str, unit: &str, scale| Axis { name: name.to_owned(), unit: unit.to_owned(), scale };
    Plot {
        id: "nop-batch".to_owned(),
        title: "No-ops per second by batch, one processor".to_owned(),
        x: axis("operations per system call", "", AxisScale::Logarithmic),
        y: axis("no-ops", "1/s", AxisScale::Linear),
        series: vec![
            line("ring without flags", plain),
            line("ring set up as this server's", bare),
            line("this server's engine", engine),
        ],
    }
}

fn findings(measured: &Measured) -> Vec<Finding> {
    vec![growth(measured), recycling(measured), slimmer(measured), engine_share(measured)]
}

/// What became of one claim.
fn finding(claim: &str, verdict: Verdict, sentence: String) -> Finding {
    Finding { claim: claim.to_owned(), verdict, sentence }
}

/// A verdict that needs figures, and the one without.
// A claim without figures stays open: nothing is concluded from what could not be measured.
fn judged(claim: &str, told: Option<(Verdict, String)>) -> Finding {
    let (verdict, sentence) = told.unwrap_or((
        Verdict::Open,
        "The machine does not let this be measured; the tables say why.".to_owned(),
    ));
    finding(claim, verdict, sentence)
}

/// The claim that the thread begins with needs two kernels on one machine.
fn growth(measured: &Measured) -> Finding {
    let claim =
        "The ring becomes slower at no-ops as the kernel grows: 6.1 million a second on 5.1, 5.3 on 5.7.";
    let batch = BATCH_OF_WRITE_UP;
    // With the write-up's own batch, since the rate depends on nothing as much as on that.
    let rates = middle(&measured.rates(&plain(batch))).zip(middle(&measured.rates(&bare(batch))));
    judged(
        claim,
        rates.map(|(plain, flags)| {
            let sentence = format!(
                "One kernel cannot tell: a comparison needs two kernels on one machine. This one does {:.1} million a \
                 second without flags and {:.1} million as this server sets its rings up.",
                plain / 1e6,
                flags / 1e6
            );
            (Verdict::Open, sentence)
        }),
    )
}

/// The claim of the patch, on our own table.
fn recycling(measured: &Measured) -> Finding {
    let claim =
        "Requests that are recycled instead of allocated make no-ops faster (10.9 million a second for 9.8).";
    // Rates, as the write-up has them; the table beside it has the times.
    let [fresh, used] = [true, false].map(|fresh| middle(&measured.rates(&Subject::Slots { fresh })));
    judged(
        claim,
        fresh.zip(used).map(|(fresh, used)| {
            let gain = used / fresh - 1.0;
            // Within the noise neither side is right: recycling then costs nothing and brings nothing.
            let verdict = match gain {
                gain if gain > NOTEWORTHY => Verdict::Holds,
                gain if gain > -NOTEWORTHY => Verdict::Partly,
                _ => Verdict::Fails,
            };
            let sentence = format!(
                "The kernel has such a cache since; our counterpart is the table of operations. On slots that are used \
                 again the engine does {:.1} million no-ops a second, on fresh ones {:.1} million: {:+.0} %.",
                used / 1e6,
                fresh / 1e6,
                gain * 100.0
            );
            (verdict, sentence)
        }),
    )
}

/// The promise at the thread's end. It has two parts, time and system calls, and holds only if both do.
fn slimmer(measured: &Measured) -> Finding {
    let claim = "The ring stays substantially slimmer than libaio, and needs fewer system calls.";
    let batch = BATCH_COMPARED;
    let read = |way, bytes, batch| Subject::Read { way, bytes, batch };
    let ratio = |bytes, batch| {
        let ring = measured.nanoseconds(&read(Way::RingAsEngine, bytes, batch));
        let aio = measured.nanoseconds(&read(Way::Libaio, bytes, batch));
        middle(&ring).zip(middle(&aio)).map(|(ring, aio)| (ring, aio, ring / aio))
    };
    let few = ratio(0, 1).zip(ratio(0, batch)).zip(ratio(4096, batch));
    // One at a time, where the two differ most: a batch divides its calls by its size on both.
    let calls = |way| middle(&measured.entries(&read(way, 0, 1)));
    let calls = calls(Way::RingAsEngine).zip(calls(Way::Libaio));
    judged(
        claim,
        few.zip(calls).map(|(((one, many), page), calls)| {
            let fewer = calls.0 < calls.1;
            // In each of the three ways of looking at it, and not by less than the noise.
            let slim = [one.2, many.2, page.2].map(|ratio| ratio < 1.0 - NOTEWORTHY);
            let verdict = match (slim.iter().filter(|slim| **slim).count(), fewer) {
                (3, true) => Verdict::Holds,
                (0, false) => Verdict::Fails,
                _ => Verdict::Partly,
            };
            let sentence = format!(
                "A read of no bytes takes {:.0} ns on the ring and {:.0} on libaio one at a time, {:.0} and {:.0} in \
                 batches of {batch}; a page in memory {:.0} and {:.0}. One operation at a time costs {:.0} system \
                 call on the ring and {:.0} on libaio.",
                one.0, one.1, many.0, many.1, page.0, page.1, calls.0, calls.1
            );
            (verdict, sentence)
        }),
    )
}

/// What this project asks of its own engine.
fn engine_share(measured: &Measured) -> Finding {
    let claim = "This server's engine reaches at least 0.80 of the bare ring's rate at batches of 64.";
    let batch = BATCH_COMPARED;
    let (ours, theirs) = (measured.rates(&engine(batch)), measured.rates(&bare(batch)));
    // Ratios are formed round by round; the times beside them say what the difference is in nanoseconds.
    let told = match ratio_cell(&ours, &theirs, 2) {
        Cell::Figure { summary, .. } => middle(&measured.nanoseconds(&engine(batch)))
            .zip(middle(&measured.nanoseconds(&bare(batch))))
            .map(|(ours, theirs)| {
                let holds = summary.median >= ENGINE_SHARE_WANTED;
                let verdict = if holds { Verdict::Holds } else { Verdict::Fails };
                let sentence = format!(
                    "A no-op takes {ours:.1} ns through the engine's contract and {theirs:.1} ns on the bare ring with \
                     the same flags: {:.2} of its rate ({:.2} to {:.2}).",
                    summary.median, summary.low, summary.high
                );
                (verdict, sentence)
            }),
        _ => None,
    };
    judged(claim, told)
}
