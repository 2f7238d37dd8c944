//! MP4 and Flash videos by time and by byte offset: the same requests to this server and to nginx, with files that the
//! test generates; the response bytes must be equal. Malformed files must cause no harm.

use crate::common::BINARY;
use testkit::{Client, Server, TempDir, nginx};

const CONF: &str = r#"worker_processes 1; error_log logs/error.log info;
events {}
http {
    server_tokens off;
    access_log off;
    types { video/mp4 mp4; video/x-flv flv; }
    server {
        listen 127.0.0.1:0;
        root SITE;
        location / { mp4; }
        location /key/ { alias SITE/; mp4; mp4_start_key_frame on; }
        location /small/ { alias SITE/; mp4; mp4_buffer_size 1k; mp4_max_buffer_size 2k; }
        location /window/ { alias SITE/; mp4; mp4_buffer_size 300; }
        location /direct/ { alias SITE/; mp4; directio 1; open_file_cache max=10; }
        location /flv/ { alias SITE/; flv; autoindex on; }
        location /none/ { alias SITE/; location /none/inner/ { alias SITE/; } mp4; }
    }
}
"#;

/// Parameters of a generated file.
#[derive(Clone, Copy, Debug, Default)]
struct Form {
    moov_last: bool,
    wide_offsets: bool,
    wide_data: bool,
    wide_headers: bool,
    uniform_sizes: bool,
    no_key_frames: bool,
    no_offsets: bool,
    /// Numbers of samples per chunk, repeated.
    per_chunk: &'static [u32],
    /// Whether optional boxes are included.
    extras: bool,
}

fn atom(name: &[u8; 4], content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    [&(content.len() as u32 + 8).to_be_bytes()[..], name, &content].concat()
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

fn table(name: &[u8; 4], rows: &[&[u32]]) -> Vec<u8> {
    atom(name, &[&words(&[0, rows.len() as u32]), &words(&rows.concat())])
}

/// A track: samples with their times, and the chunks that contain them.
struct Track {
    timescale: u32,
    times: Vec<[u32; 2]>,
    sizes: Vec<u32>,
    key_frames: Option<Vec<u32>>,
    offsets: Option<Vec<[u32; 2]>>,
    chunks: Vec<(u64, u32)>,
    is_video: bool,
}

impl Track {
    fn new(is_video: bool, form: Form) -> Track {
        let count: u32 = if is_video { 250 } else { 431 };
        let times = match is_video {
            true => vec![[100, 512], [50, 500], [1, 300], [99, 520]],
            false => vec![[431, 1024]],
        };
        let size = |index: u32| if form.uniform_sizes { 40 } else { 20 + index * 37 % 90 };
        let frames = (0..count).filter(|index| index % 12 == 0 || index % 31 == 5).map(|index| index + 1);
        let shown = (0..count / 2).map(|index| [2, index % 3 * 512]).collect();
        Track {
            timescale: if is_video { 12_800 } else { 44_100 },
            times,
            sizes: (0..count).map(size).collect(),
            key_frames: (is_video && !form.no_key_frames).then(|| frames.collect()),
            offsets: (is_video && !form.no_offsets).then_some(shown),
            chunks: Vec::new(),
            is_video,
        }
    }

    fn duration(&self) -> u64 {
        self.times.iter().map(|[count, time]| u64::from(*count) * u64::from(*time)).sum()
    }

    fn boxes(&self, form: Form) -> Vec<u8> {
        let (duration, scale) = (self.duration(), self.timescale);
        let in_movie = duration * 1000 / u64::from(scale);
        let tkhd = match form.wide_headers {
            true => [words(&[0x0100_0000, 0, 0, 0, 0, 1, 0]), in_movie.to_be_bytes().to_vec(), vec![0; 60]]
                .concat(),
            false => [words(&[0, 0, 0, 1, 0, in_movie as u32]), vec![0; 60]].concat(),
        };
        let mdhd = match form.wide_headers {
            true => [words(&[0x0100_0000, 0, 0, 0, 0, scale]), duration.to_be_bytes().to_vec(), vec![0; 4]]
                .concat(),
            false => words(&[0, 0, 0, scale, duration as u32, 0]),
        };
        let mut rows: Vec<[u32; 3]> = Vec::new();
        for (index, (_, count)) in self.chunks.iter().enumerate() {
            if rows.last().is_none_or(|[_, last, _]| last != count) {
                rows.push([index as u32 + 1, *count, 1]);
            }
        }
        let rows: Vec<&[u32]> = rows.iter().map(|row| &row[..]).collect();
        let times: Vec<&[u32]> = self.times.iter().map(|row| &row[..]).collect();
        let mut stbl = atom(b"stsd", &[&words(&[0, 1, 16]), b"avc1", &[0; 8]]);
        stbl.extend(table(b"stts", &times));
        if let Some(frames) = &self.key_frames {
            stbl.extend(atom(b"stss", &[&words(&[0, frames.len() as u32]), &words(frames)]));
        }
        if let Some(offsets) = &self.offsets {
            let offsets: Vec<&[u32]> = offsets.iter().map(|row| &row[..]).collect();
            stbl.extend(table(b"ctts", &offsets));
        }
        stbl.extend(table(b"stsc", &rows));
        let count = self.sizes.len() as u32;
        stbl.extend(match form.uniform_sizes {
            true => atom(b"stsz", &[&words(&[0, 40, count])]),
            false => atom(b"stsz", &[&words(&[0, 0, count]), &words(&self.sizes)]),
        });
        let chunks = self.chunks.iter().map(|(offset, _)| *offset);
        stbl.extend(match form.wide_offsets {
            true => {
                let offsets: Vec<u8> = chunks.flat_map(u64::to_be_bytes).collect();
                atom(b"co64", &[&words(&[0, self.chunks.len() as u32]), &offsets])
            }
            false => {
                let offsets: Vec<u32> = chunks.map(|offset| offset as u32).collect();
                atom(b"stco", &[&words(&[0, offsets.len() as u32]), &words(&offsets)])
            }
        });
        let media = if self.is_video { atom(b"vmhd", &[&[0; 12]]) } else { atom(b"smhd", &[&[0; 8]]) };
        let dinf = atom(b"dinf", &[&atom(b"dref", &[&words(&[0, 0])])]);
        let minf = atom(b"minf", &[&media, &dinf, &atom(b"stbl", &[&stbl])]);
        let hdlr = atom(b"hdlr", &[&words(&[0, 0]), b"vide", &[0; 12], b"name\0"]);
        let mdia = atom(b"mdia", &[&atom(b"mdhd", &[&mdhd]), &hdlr, &minf]);
        let extra = atom(b"edts", &[&table(b"elst", &[&[1000, 0, 0x1_0000]])]);
        let extra = if form.extras { extra } else { Vec::new() };
        atom(b"trak", &[&atom(b"tkhd", &[&tkhd]), &extra, &mdia])
    }
}

/// Returns a movie of ten seconds.
fn movie(form: Form) -> Vec<u8> {
    let mut tracks = [Track::new(true, form), Track::new(false, form)];
    let ftyp = atom(b"ftyp", &[b"isom", &words(&[512]), b"isomiso2avc1mp41"]);
    let free = if form.extras { atom(b"free", &[b"nothing of interest"]) } else { Vec::new() };
    let data_header = if form.wide_data { 16 } else { 8 };
    let mut moov_len = 0;
    // Twice: the offset of the data depends on the length of the box before it.
    for _ in 0..2 {
        let before = ftyp.len() + free.len() + if form.moov_last { 0 } else { moov_len };
        let mut at = (before + data_header) as u64;
        tracks.iter_mut().for_each(|track| track.chunks.clear());
        let (mut done, mut turn) = ([0_usize; 2], 0);
        while tracks.iter().zip(done).any(|(track, done)| done < track.sizes.len()) {
            for (track, done) in tracks.iter_mut().zip(&mut done) {
                let count = form.per_chunk[turn % form.per_chunk.len()] as usize;
                let count = count.min(track.sizes.len() - *done);
                if count > 0 {
                    track.chunks.push((at, count as u32));
                    at += track.sizes[*done..*done + count].iter().map(|size| u64::from(*size)).sum::<u64>();
                    *done += count;
                }
            }
            turn += 1;
        }
        let duration = 10_000_u64;
        let mvhd = match form.wide_headers {
            true => [words(&[0x0100_0000, 0, 0, 0, 0, 1000]), duration.to_be_bytes().to_vec(), vec![0; 80]]
                .concat(),
            false => [words(&[0, 0, 0, 1000, duration as u32]), vec![0; 80]].concat(),
        };
        let udta = if form.extras { atom(b"udta", &[b"words"]) } else { Vec::new() };
        let parts = [atom(b"mvhd", &[&mvhd]), tracks[0].boxes(form), tracks[1].boxes(form), udta];
        let moov = atom(b"moov", &[&parts.concat()]);
        moov_len = moov.len();
        let len = at as usize - before - data_header;
        let content: Vec<u8> = (0..len).map(|index| (index * 7 + index / 251) as u8).collect();
        let mdat = match form.wide_data {
            true => [&words(&[1])[..], b"mdat", &(len as u64 + 16).to_be_bytes(), &content].concat(),
            false => atom(b"mdat", &[&content]),
        };
        let whole = match form.moov_last {
            true => [&ftyp[..], &free, &mdat, &moov].concat(),
            false => [&ftyp[..], &free, &moov, &mdat].concat(),
        };
        if at as usize == before + data_header + len && moov_len == moov.len() && !tracks[0].chunks.is_empty()
        {
            let first = tracks[0].chunks[0].0 as usize;
            if whole.get(first..first + 1) == Some(&content[..1]) {
                return whole;
            }
        }
    }
    panic!("the offsets do not settle")
}

const FORMS: &[(&str, Form)] = {
    const PLAIN: Form = Form {
        moov_last: false,
        wide_offsets: false,
        wide_data: false,
        wide_headers: false,
        uniform_sizes: false,
        no_key_frames: false,
        no_offsets: false,
        per_chunk: &[5],
        extras: false,
    };
    &[
        ("plain", PLAIN),
        ("last", Form { moov_last: true, extras: true, ..PLAIN }),
        ("wide", Form { wide_offsets: true, wide_data: true, wide_headers: true, ..PLAIN }),
        ("one", Form { per_chunk: &[1], no_offsets: true, ..PLAIN }),
        ("many", Form { per_chunk: &[60], no_key_frames: true, ..PLAIN }),
        ("mixed", Form { per_chunk: &[3, 3, 7, 1, 1, 12, 2], extras: true, ..PLAIN }),
        ("huge", Form { per_chunk: &[1000], ..PLAIN }),
        ("uniform", Form { uniform_sizes: true, per_chunk: &[4, 9], ..PLAIN }),
        ("deep", Form { per_chunk: &[2, 2, 2, 30], wide_offsets: true, moov_last: true, ..PLAIN }),
    ]
};

fn get(server: &Server, method: &str, target: &str, fields: &[(&str, &str)]) -> (String, Vec<u8>) {
    let mut all = vec![("Host", "a"), ("Connection", "close")];
    all.extend(fields);
    let mut client = Client::connect(server.addr(0));
    client.send(testkit::client::request_bytes(method, target, &all));
    let response = if method == "HEAD" { client.response_to_head() } else { client.response() };
    let shown = ["Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "ETag", "Last-Modified"];
    let is_fine = response.status < 300;
    let fields: Vec<_> =
        shown.iter().filter(|_| is_fine).filter_map(|name| Some((name, response.field(name)?))).collect();
    // Built-in pages contain the server's name.
    let body = if is_fine { response.body.to_vec() } else { Vec::new() };
    (format!("{} {fields:?}", response.status), body)
}

fn sides(site: &TempDir) -> Option<(Server, Server)> {
    let conf = CONF.replace("SITE", &site.path().display().to_string());
    Some((Server::start(BINARY, &conf), nginx::start(&conf)?))
}

/// Time ranges to test: the edges of samples, of sync samples, of chunks, of the movie, and odd ones.
const SPANS: &[&str] = &[
    "",
    "start=0",
    "start=",
    "start=x",
    "start=-1",
    "end=3",
    "end=0",
    "start=0&end=3",
    "start=3&end=3",
    "start=3&end=2",
    "start=0.001",
    "start=0.04",
    "start=0.0400001",
    "start=0.041",
    "start=1",
    "start=1.92",
    "start=2&end=2.01",
    "start=2&end=2.5",
    "start=2&end=5",
    "start=2.123456789&end=7.987654321",
    "start=3.99",
    "start=4",
    "start=4.001",
    "start=5.5&end=5.6",
    "start=5.9529",
    "start=9",
    "start=9.9",
    "start=9.95",
    "start=9.99",
    "start=10",
    "start=10.01",
    "start=11",
    "start=1e3",
    "start=9&end=100",
    "start=0&end=0.01",
    "start=0.5&end=9.96",
    "start=7.3&end=7.31",
    "START=2",
    "a=b&start=2&end=4&c",
    "start=.5",
    "start=5.",
    "start=1.2.3",
];

#[test]
fn parts_of_movies_have_the_bytes_of_nginx() {
    let site = TempDir::new("mp4");
    for (name, form) in FORMS {
        site.write(&format!("{name}.mp4"), movie(*form));
    }
    let Some((ours, theirs)) = sides(&site) else { return };
    let (mut wrong, mut cut) = (Vec::new(), 0);
    for (name, _) in FORMS {
        for place in ["/", "/key/", "/window/", "/small/"] {
            for span in SPANS.iter().filter(|_| place == "/" || place == "/key/").chain(&["start=3&end=6"]) {
                let target = format!("{place}{name}.mp4?{span}");
                let (mine, nginx) = (get(&ours, "GET", &target, &[]), get(&theirs, "GET", &target, &[]));
                cut +=
                    usize::from(mine.0.starts_with("200") && mine.1.windows(4).any(|bytes| bytes == b"moov"));
                if mine != nginx {
                    let at = mine.1.iter().zip(&nginx.1).take_while(|(mine, nginx)| mine == nginx).count();
                    let (a, b) = (mine.1.len(), nginx.1.len());
                    wrong.push(format!(
                        "{target}: {} and {}: {a} and {b} bytes, the same up to {at}",
                        mine.0, nginx.0
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} requests:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cut > 300, "{cut}");
}

#[test]
fn a_movie_is_cut_while_its_cached_file_bypasses_the_page_cache() {
    let site = TempDir::new("mp4-direct");
    site.write("a.mp4", movie(FORMS[0].1));
    let conf = CONF.replace("SITE", &site.path().display().to_string());
    let server = Server::start(BINARY, &conf);
    // The first request leaves an open file with O_DIRECT in the cache.
    assert!(get(&server, "GET", "/direct/a.mp4", &[]).0.starts_with("200"));
    for span in ["start=3&end=6", "start=9"] {
        let expected = get(&server, "GET", &format!("/a.mp4?{span}"), &[]);
        assert!(expected.0.starts_with("200"), "{}", expected.0);
        assert_eq!(get(&server, "GET", &format!("/direct/a.mp4?{span}"), &[]), expected, "{span}");
    }
}

#[test]
fn fields_ranges_and_invalid_movies_match_nginx() {
    let site = TempDir::new("mp4-fields");
    site.write("a.mp4", movie(FORMS[5].1));
    site.write("a.flv", (0..5000_u32).map(|index| index as u8).collect::<Vec<_>>());
    site.write("text.mp4", "no movie");
    site.write("empty.mp4", "");
    site.write("dir/a.mp4", movie(FORMS[0].1));
    let Some((ours, theirs)) = sides(&site) else { return };
    let mut wrong = Vec::new();
    let mut ask = |method: &str, target: &str, fields: &[(&str, &str)]| {
        let (mine, nginx) = (get(&ours, method, target, fields), get(&theirs, method, target, fields));
        if mine != nginx {
            wrong.push(format!("{method} {target} {fields:?}: {} and {}", mine.0, nginx.0));
        }
    };
    let ranges = [
        "bytes=0-9",
        "bytes=100-3000",
        "bytes=3000-3999",
        "bytes=-50",
        "bytes=4990-",
        "bytes=90000-",
        "bytes=0-1,5-6",
    ];
    for target in ["/a.mp4", "/a.mp4?start=3", "/a.mp4?start=3&end=4", "/flv/a.flv", "/flv/a.flv?start=2000"]
    {
        for method in ["GET", "HEAD", "POST", "PUT"] {
            ask(method, target, &[]);
        }
        for range in ranges {
            // With several ranges of a composed Flash video nginx aborts the response. For plain files the multipart
            // boundaries differ.
            if !range.contains(',') || target.starts_with("/a.mp4?") {
                ask("GET", target, &[("Range", range)]);
            }
        }
    }
    for target in [
        "/text.mp4",
        "/text.mp4?start=1",
        "/empty.mp4",
        "/empty.mp4?start=1",
        "/missing.mp4",
        "/missing.mp4?start=1",
        "/dir",
        "/dir/",
        "/dir/?start=1",
        "/flv/dir",
        "/flv/missing",
        "/flv/a.flv?start=0",
        "/flv/a.flv?start=5000",
        "/flv/a.flv?start=4999",
        "/flv/a.flv?start=x",
        "/flv/a.flv?start=99999999999999999999",
        "/flv/empty.mp4?start=1",
        "/none/a.mp4?start=3",
        "/none/inner/a.mp4?start=3",
        "/dir/a.mp4?start=2",
    ] {
        ask("GET", target, &[]);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Truncated files, and files with modified bytes in the box: the result is always a response or an error, and the
/// server continues.
#[test]
fn broken_movies_cause_errors() {
    let site = TempDir::new("mp4-broken");
    let whole = movie(FORMS[5].1);
    let conf = CONF.replace("SITE", &site.path().display().to_string());
    let server = Server::start(BINARY, &conf);
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % most as u64) as usize
    };
    let (mut fine, mut errors) = (0, 0);
    for round in 0..600 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(next(whole.len())),
            _ => {
                for _ in 0..=next(4) {
                    let at = next(4000);
                    bytes[at] = [0, 1, 0x7f, 0xff, 8][next(5)];
                }
            }
        }
        let name = format!("{round}.mp4");
        site.write(&name, bytes);
        let place = ["/", "/key/", "/window/"][round % 3];
        let (shown, _) = get(&server, "GET", &format!("{place}{name}?start=3&end=6"), &[]);
        match &shown[..3] {
            "200" => fine += 1,
            "500" => errors += 1,
            _ => panic!("{round}: {shown}"),
        }
    }
    assert!(fine > 20 && errors > 100, "{fine} {errors}");
}

#[test]
fn the_rate_limit_follows_the_bit_rate() {
    let site = TempDir::new("mp4-rate");
    let bytes = movie(FORMS[0].1);
    site.write("a.mp4", bytes.clone());
    let conf = format!(
        "events {{}} http {{ log_format l \"$uri $limit_rate\"; access_log logs/access.log l;
         server {{ listen 127.0.0.1:0; root {0}; mp4_limit_rate_after 1h;
         location / {{ mp4; mp4_limit_rate on; }} location /two/ {{ alias {0}/; mp4; mp4_limit_rate 2; }}
         location /off/ {{ alias {0}/; mp4; }} }} }}",
        site.path().display()
    );
    let server = Server::start(BINARY, &conf);
    let second = bytes.len() as u64 / 10;
    for (target, rate) in [("/a.mp4", second * 11 / 10), ("/two/a.mp4", second * 2), ("/off/a.mp4", 0)] {
        assert!(get(&server, "GET", target, &[]).0.starts_with("200"));
        let logged = || {
            server
                .access_log()
                .lines()
                .find(|line| line.starts_with(&format!("{target} ")))
                .map(str::to_owned)
        };
        let line =
            testkit::wait::until("a line", testkit::Deadline::default(), logged).expect("it is written");
        let found: u64 = line.rsplit(' ').next().and_then(|rate| rate.parse().ok()).expect("a number");
        assert!(found.abs_diff(rate) <= 2, "{line}, not {rate}");
    }
}
