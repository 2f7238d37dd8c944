//! The report of `ringroad bench` in a real browser: every plot has its series, nothing is wider than a phone, the
//! console has no message, and the page follows the browser's dark or light preference.
//!
//! The pages are of a made-up report with every optional element, of an instant run of all scenarios, and of the stored
//! full runs. Debian's chromium loads each in a frame as wide as a phone and as a desktop, dark and light, where a
//! script of the test inspects it: the page itself has no script, and its policy forbids scripts. Without chromium the
//! tests print that they are skipped, and pass.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::control::BINARY;
use serde_json::Value;
use testkit::TempDir;
use testkit::program::{Program, run};
use testkit::wait::Deadline;

const MADE_UP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/fixtures/made-up.json");

/// Timeout of the browser in seconds. On an idle machine the browser starts in two seconds.
const BROWSER_SECONDS_MAX: &str = "120";

/// Timeout of an instant run of all scenarios: it takes one minute on an idle machine.
const RUN_MAX: Duration = Duration::from_secs(900);

/// Inspects the page in the frame and writes one line for each observation.
const SCRIPT: &str = r#"
frame.onload = () => {
  const page = frame.contentDocument, lines = [];
  const root = page.documentElement;
  lines.push(`width ${root.clientWidth} of ${frame.contentWindow.innerWidth}, reaches ${root.scrollWidth}`);
  const background = frame.contentWindow.getComputedStyle(page.body).backgroundColor;
  lines.push('background ' + background);
  // Folded elements are inspected too.
  for (const details of page.querySelectorAll('details')) details.open = true;
  lines.push(`unfolded reaches ${root.scrollWidth}`);
  for (const figure of page.querySelectorAll('figure.plot')) {
    const drawing = figure.querySelector('svg.drawing');
    if (!drawing) { lines.push(`plot ${figure.id} has no drawing`); continue; }
    const drawn = [...drawing.querySelectorAll('g.series')].filter(series => {
      const line = series.querySelector('path.line');
      const stroke = frame.contentWindow.getComputedStyle(line).stroke;
      const painted = stroke !== 'none' && stroke !== '' && stroke !== background;
      const visible = painted && parseFloat(drawing.getBoundingClientRect().height) > 150;
      return visible && (line.getTotalLength() > 0 || series.querySelector('.mark'));
    });
    lines.push(`plot ${figure.id} drawn ${drawn.length} keys ${figure.querySelectorAll('ul.keys li').length}`);
    const edge = drawing.getBoundingClientRect();
    const labels = [...drawing.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [at, [text, box]] of labels.entries()) {
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.bottom > edge.bottom + 1)
        lines.push(`label outside: ${figure.id} "${text}"`);
      if (box.height < 11) lines.push(`label too small: ${figure.id} "${text}" ${box.height}`);
      for (const [other, otherBox] of labels.slice(at + 1))
        if (box.left < otherBox.right && otherBox.left < box.right && box.top + 3 < otherBox.bottom && otherBox.top + 3 < box.bottom)
          lines.push(`labels touch: ${figure.id} "${text}" "${other}"`);
    }
  }
  result.textContent = lines.join('\n') + '\nend';
};
"#;

/// Size and colour scheme in which a page is viewed.
#[derive(Clone, Copy, Debug)]
struct View {
    width: u32,
    dark: bool,
}

const PHONE: View = View { width: 390, dark: false };
const VIEWS: [View; 4] = [
    PHONE,
    View { width: 390, dark: true },
    View { width: 1280, dark: false },
    View { width: 1280, dark: true },
];

/// Returns the browser's path, if it is installed.
fn browser() -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&directories)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|path| path.is_file())
}

/// Loads a file; returns the browser's output and its messages.
fn load(browser: &Path, directory: &TempDir, dark: bool, file: &Path) -> (String, String) {
    let profile = directory.path().join(if dark { "dark" } else { "light" });
    let output = Command::new("timeout")
        .arg(BROWSER_SECONDS_MAX)
        .arg(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ])
        .args(["--enable-logging=stderr", "--window-size=1000,900", "--dump-dom"])
        .arg(format!("--blink-settings=preferredColorScheme={}", if dark { 0 } else { 1 }))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .output()
        .expect("timeout of the core utilities");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{} failed: {}", browser.display(), text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// Renders the made-up report.
fn render(directory: &TempDir) -> String {
    let out = directory.path().join("out").display().to_string();
    let finished = run(BINARY, &["bench", "report", MADE_UP, "--out", &out]);
    assert!(finished.status.success(), "{}", finished.stderr);
    std::fs::read_to_string(directory.path().join("out/report.html")).expect("the page")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// Returns the script's lines for a page in a frame of the view's width.
fn inspect_page(browser: &Path, directory: &TempDir, page: &str, view: View) -> Vec<String> {
    let frame = format!(
        "<!DOCTYPE html><html><body><iframe id=\"frame\" style=\"width:{}px;height:844px;border:0\" srcdoc=\"{}\">\
         </iframe><pre id=\"result\"></pre><script>{SCRIPT}</script></body></html>",
        view.width,
        escape(page)
    );
    let file = directory.write("frame.html", frame);
    let (dom, said) = load(browser, directory, view.dark, &file);
    assert!(!said.contains(":CONSOLE"), "messages on the console:\n{said}");
    let result = dom.split("<pre id=\"result\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let lines: Vec<String> = result.unwrap_or_default().lines().map(str::to_owned).collect();
    assert_eq!(
        lines.last().map(String::as_str),
        Some("end"),
        "the script did not come to its end: {dom:.400}"
    );
    lines
}

/// Returns the number that follows a word of a line.
fn figure(line: &str, word: &str) -> u32 {
    let rest = line.split(word).nth(1).unwrap_or_else(|| panic!("no {word} in {line}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no figure behind {word} in {line}"))
}

/// Returns the ID and the number of non-empty series of every plot of a report.
fn expected_plots(json: &Path) -> Vec<(String, u32)> {
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("a report")).expect("JSON");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let sections = list(&report["sections"]).into_iter();
    let plots = sections.flat_map(|section| list(&section["plots"]));
    plots
        .map(|plot| {
            let series = list(&plot["series"]);
            let drawn = series.iter().filter(|series| !list(&series["points"]).is_empty()).count();
            (plot["id"].as_str().expect("an id").to_owned(), u32::try_from(drawn).expect("a few"))
        })
        .collect()
}

/// Inspects a page in every view and compares the drawn plots with the JSON file; no elements overlap, none is too
/// wide.
fn check(browser: &Path, directory: &TempDir, page: &str, json: &Path) {
    let plots = expected_plots(json);
    assert!(!plots.is_empty());
    for view in VIEWS {
        let lines = inspect_page(browser, directory, page, view);
        let wide =
            |line: &String| line.contains("reaches") && figure(line, "reaches") > figure(&lines[0], "width");
        let wrong: Vec<&String> =
            lines.iter().filter(|line| line.starts_with("label") || wide(line)).collect();
        assert!(wrong.is_empty(), "{view:?}: {wrong:#?}\n{}", lines[0]);
        for (id, series) in &plots {
            let start = format!("plot {id} ");
            let line = lines.iter().find(|line| line.starts_with(&start)).expect("a line for each plot");
            assert_eq!(figure(line, "drawn"), *series, "{view:?}: {line}");
        }
        // The data of the plots of the machine's state is in the recordings and not in the JSON file: only the page has them.
        for line in lines.iter().filter(|line| line.starts_with("plot s")) {
            assert_eq!(figure(line, "drawn"), figure(line, "keys"), "{view:?}: {line}");
        }
    }
}

/// Returns the names of the scenarios with results in a report.
fn scenarios(json: &Path) -> Vec<String> {
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("a report")).expect("JSON");
    let sections = report["sections"].as_array().expect("sections");
    sections.iter().map(|section| section["scenario"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn every_plot_has_its_series_and_fits_on_a_phone() {
    let Some(browser) = browser() else {
        return testkit::skip("chromium is not installed");
    };
    let directory = TempDir::new("page");
    let page = render(&directory);
    check(&browser, &directory, &page, Path::new(MADE_UP));
}

/// Runs every scenario, so that every kind of plot is inspected.
#[test]
#[ignore = "all scenarios, three minutes"]
fn a_new_report_of_this_machine_is_drawn_too() {
    let Some(browser) = browser() else {
        return testkit::skip("chromium is not installed");
    };
    let directory = TempDir::new("page");
    let (work, out) =
        (directory.path().display().to_string(), directory.path().join("out").display().to_string());
    let mut program = Program::start(BINARY, &["bench", "all", "--instant", "--work", &work, "--out", &out]);
    let status = program.wait_until_ended(Deadline::after(RUN_MAX));
    // Status 1 means that a scenario has failed; the report contains the reason.
    assert!(matches!(status.code(), Some(0 | 1)), "{}", program.stderr());
    let json = directory.path().join("out/report.json");
    let page = std::fs::read_to_string(directory.path().join("out/report.html")).expect("the page");
    check(&browser, &directory, &page, &json);
    let scenarios = scenarios(&json);
    let all = [
        "nop",
        "disk",
        "echo",
        "wire",
        "http",
        "crowd",
        "cold",
        "fill",
        "cache",
        "large",
        "isolate",
        "stream",
        "stream-proxy",
        "tls",
        "h2",
        "grpc",
        "h3",
        "delay",
    ];
    assert_eq!(scenarios, all, "{}", program.stderr());
}

#[test]
fn the_page_is_dark_if_the_browser_prefers_dark() {
    let Some(browser) = browser() else {
        return testkit::skip("chromium is not installed");
    };
    let directory = TempDir::new("page");
    let page = render(&directory);
    let brightness = |dark: bool| {
        let lines = inspect_page(&browser, &directory, &page, View { dark, ..PHONE });
        let line = lines.iter().find(|line| line.starts_with("background")).expect("the background");
        figure(line, "rgb(")
    };
    let (light, dark) = (brightness(false), brightness(true));
    assert!(light > 200 && dark < 60, "light {light}, dark {dark}");
}

/// Checks the test itself: it detects a page that is too wide, has a plot without lines or writes to the console.
#[test]
fn a_faulty_page_is_detected() {
    let Some(browser) = browser() else {
        return testkit::skip("chromium is not installed");
    };
    let directory = TempDir::new("page");
    let page = render(&directory);
    let id = expected_plots(Path::new(MADE_UP))[0].0.clone();
    let faulty = page
        .replace("<main>", "<main><div style=\"width:700px\">wide</div>")
        .replace(".line { fill: none; stroke: var(--c);", ".line { fill: none; stroke: none;");
    let lines = inspect_page(&browser, &directory, &faulty, PHONE);
    assert!(figure(&lines[0], "reaches") > figure(&lines[0], "width"), "{}", lines[0]);
    let line =
        lines.iter().find(|line| line.starts_with(&format!("plot {id} "))).expect("a line for each plot");
    assert_eq!(figure(line, "drawn"), 0, "{line}");
    let noisy = directory.write("noisy.html", page.replace("<main>", "<main><script>1</script>"));
    let (_, said) = load(&browser, &directory, false, &noisy);
    assert!(said.contains(":CONSOLE"), "a forbidden script is reported on the console: {said}");
}
