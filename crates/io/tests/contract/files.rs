//! Operations on files and paths.

use io::Errno;

use crate::harness::{TempDir, on_each_pair, pattern};

#[test]
fn short_read_at_the_end_then_nothing() {
    let dir = TempDir::new();
    let bytes = pattern(10_000);
    let path = dir.file("a", &bytes);
    on_each_pair(|bench| {
        let file = bench.open(&path, 0).unwrap();
        assert_eq!(bench.read(&file, 8_000, 4096), Ok(bytes[8_000..].to_vec()));
        assert_eq!(bench.read(&file, 10_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.read(&file, 20_000, 4096), Ok(Vec::new()));
        assert_eq!(bench.open(&dir.path("none"), 0).err(), Some(Errno::NOENT));
        drop(file);
        bench.assert_drains();
    });
}
