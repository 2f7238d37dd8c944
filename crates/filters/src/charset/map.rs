//! `charset_map`: conversion tables between two charsets.
//!
//! The tables are created when the configuration is read, and shared by all threads. A conversion costs one table
//! lookup per character.

use std::sync::Arc;

use conf::{Error, Statement};

use site::config::Cx;
use site::settings::charset::Charsets;

/// The maps of a configuration.
#[derive(Debug, Default)]
pub(super) struct Maps(Vec<Arc<Map>>);

/// A `charset_map`, which is used in both directions.
#[derive(Debug)]
pub(super) struct Map {
    /// The charset of the first column.
    from: Arc<str>,
    /// The charset of the second column.
    to: Arc<str>,
    pub(super) tables: Tables,
}

/// The conversion tables.
#[derive(Debug)]
pub(super) enum Tables {
    /// Both charsets have a byte for each character.
    Bytes { forth: Box<[u8; 256]>, back: Box<[u8; 256]> },
    /// The second charset is UTF-8.
    Utf8 { forth: Box<[Utf8; 256]>, back: Box<Utf8Table> },
}

/// A character of the Basic Multilingual Plane, or its replacement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Utf8 {
    bytes: [u8; UTF8_LEN_MAX],
    len: u8,
}

/// Maximum number of bytes of a character in UTF-8: as in nginx maps cover only the Basic Multilingual Plane.
const UTF8_LEN_MAX: usize = 3;

/// The bytes of characters, in pages of 256; zero for missing characters.
#[derive(Debug)]
pub(super) struct Utf8Table([Option<Box<[u8; 256]>>; 256]);

/// The only supported charset with several bytes per character.
const UTF8_NAME: &str = "utf-8";

/// A map and its direction.
#[derive(Clone, Debug)]
pub(super) struct Conversion {
    pub(super) map: Arc<Map>,
    /// Whether the conversion is from the second charset to the first.
    pub(super) is_back: bool,
}

impl Maps {
    /// Returns the map between these charsets, and its direction.
    pub(super) fn conversion(&self, from: &[u8], to: &[u8]) -> Option<Conversion> {
        let is = |name: &str, wanted: &[u8]| name.as_bytes().eq_ignore_ascii_case(wanted);
        self.0.iter().find_map(|map| {
            let forth = is(&map.from, from) && is(&map.to, to);
            let back = is(&map.from, to) && is(&map.to, from);
            (forth || back).then(|| Conversion { map: Arc::clone(map), is_back: back })
        })
    }
}

impl Utf8 {
    const UNKNOWN: Utf8 = Utf8::of_byte(b'?');

    const fn of_byte(byte: u8) -> Utf8 {
        Utf8 { bytes: [byte, 0, 0], len: 1 }
    }

    /// Returns the bytes of the character.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Parses hexadecimal digits, two per byte; they must form one character.
    fn parse(text: &str) -> Option<(Utf8, char)> {
        if text.is_empty()
            || !text.len().is_multiple_of(2)
            || text.len() > 2 * UTF8_LEN_MAX
            || !text.is_ascii()
        {
            return None;
        }
        let mut found = Utf8 { bytes: [0; UTF8_LEN_MAX], len: (text.len() / 2) as u8 };
        for (index, byte) in found.bytes.iter_mut().take(text.len() / 2).enumerate() {
            *byte = hex(&text[2 * index..2 * index + 2])?;
        }
        let mut characters = std::str::from_utf8(found.as_bytes()).ok()?.chars();
        let character = characters.next()?;
        characters.next().is_none().then_some((found, character))
    }
}

impl Utf8Table {
    /// Returns the byte of a character.
    pub(super) fn byte(&self, character: char) -> Option<u8> {
        let [page, index] = u16::try_from(u32::from(character)).ok()?.to_be_bytes();
        let byte = self.0[usize::from(page)].as_ref()?[usize::from(index)];
        (byte != 0).then_some(byte)
    }

    /// Adds the byte of a character to the table. A later byte replaces an earlier one.
    fn set(&mut self, character: char, byte: u8) {
        // Three bytes of UTF-8 cover exactly the Basic Multilingual Plane.
        let [page, index] = (u32::from(character) as u16).to_be_bytes();
        let page = self.0[usize::from(page)].get_or_insert_with(|| Box::new([0; 256]));
        page[usize::from(index)] = byte;
    }
}

impl Tables {
    /// Returns the tables before the rows are read: ASCII is the same in all charsets, so maps need not list it. All
    /// other characters are unknown.
    fn start(is_utf8: bool) -> Tables {
        let ascii = |byte: usize| byte < 128;
        if is_utf8 {
            let forth = std::array::from_fn(|byte| match ascii(byte) {
                true => Utf8::of_byte(byte as u8),
                false => Utf8::UNKNOWN,
            });
            let mut back = Utf8Table(std::array::from_fn(|_| None));
            (0..128).for_each(|byte: u8| back.set(byte.into(), byte));
            return Tables::Utf8 { forth: Box::new(forth), back: Box::new(back) };
        }
        let same: [u8; 256] = std::array::from_fn(|byte| if ascii(byte) { byte as u8 } else { b'?' });
        Tables::Bytes { forth: Box::new(same), back: Box::new(same) }
    }

    /// Parses a row: a byte of the first charset, and the same character in the second one.
    fn read(&mut self, row: &Statement) -> Result<(), Error> {
        let [to] = row.args.as_slice() else { return Err(Error::at(row, "invalid parameters number")) };
        let invalid = |text: &str| Error::at(row, format_args!("invalid value \"{text}\""));
        let (from, to) = (row.name.text.as_str(), to.text.as_str());
        let source = hex(from).ok_or_else(|| invalid(from))?;
        match self {
            Tables::Bytes { forth, back } => {
                let target = hex(to).ok_or_else(|| invalid(to))?;
                forth[usize::from(source)] = target;
                back[usize::from(target)] = source;
            }
            Tables::Utf8 { forth, back } => {
                let (target, character) = Utf8::parse(to).ok_or_else(|| invalid(to))?;
                forth[usize::from(source)] = target;
                back.set(character, source);
            }
        }
        Ok(())
    }
}

/// Parses a byte in hexadecimal digits.
fn hex(text: &str) -> Option<u8> {
    // `from_str_radix` would accept a sign.
    let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

/// Parses `charset_map A B { … }`.
pub(super) fn read(cx: &mut Cx<'_>) -> Result<(), Error> {
    let (from, to) = (cx.arg(0), cx.arg(1));
    let pair = format!("\"{from}\" and \"{to}\"");
    let charsets = cx.http.make_mut::<Charsets>();
    let map = (charsets.intern(from), charsets.intern(to));
    if map.0 == map.1 {
        return Err(cx.error(format_args!("\"charset_map\" between the same charsets {pair}")));
    }
    if cx.http.of::<Maps>().conversion(from.as_bytes(), to.as_bytes()).is_some() {
        return Err(cx.error(format_args!("duplicate \"charset_map\" between {pair}")));
    }
    // nginx accepts `utf-8` as the first charset, and then reads beyond its table during a conversion.
    if from.eq_ignore_ascii_case(UTF8_NAME) {
        return Err(cx.error("\"utf-8\" must be the second charset of \"charset_map\""));
    }
    let mut tables = Tables::start(to.eq_ignore_ascii_case(UTF8_NAME));
    for row in cx.statement.rows() {
        tables.read(row?)?;
    }
    cx.http.make_mut::<Maps>().0.push(Arc::new(Map { from: map.0, to: map.1, tables }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::charset::map::Maps;
    use crate::testing::{error, loaded};

    #[test]
    fn maps_apply_in_both_directions() {
        let config =
            loaded("charset_map koi8-r KOI8-U { }  charset_map Koi8-R utf-8 { E1 D090; 80 E29480; }");
        let maps = config.http.of::<Maps>();
        let conversion = |from: &str, to: &str| {
            maps.conversion(from.as_bytes(), to.as_bytes()).map(|conversion| conversion.is_back)
        };
        assert_eq!(conversion("koi8-r", "koi8-u"), Some(false));
        assert_eq!(conversion("UTF-8", "KOI8-R"), Some(true));
        assert_eq!(conversion("koi8-u", "utf-8"), None);
        // The first spelling is used everywhere.
        assert_eq!(maps.0[1].from.as_ref(), "koi8-r");
    }

    #[test]
    fn wrong_maps_are_refused() {
        for (text, expected) in [
            ("charset_map A a {}", "\"charset_map\" between the same charsets \"A\" and \"a\""),
            ("charset_map a b {} charset_map B A {}", "duplicate \"charset_map\" between \"B\" and \"A\""),
            ("charset_map utf-8 a {}", "\"utf-8\" must be the second charset of \"charset_map\""),
            ("charset_map a b { 80; }", "invalid parameters number"),
            ("charset_map a b { 80 81 82; }", "invalid parameters number"),
            ("charset_map a b { 100 81; }", "invalid value \"100\""),
            ("charset_map a b { +8 81; }", "invalid value \"+8\""),
            ("charset_map a b { 80 8x; }", "invalid value \"8x\""),
            ("charset_map a utf-8 { 80 D0; }", "invalid value \"D0\""),
            ("charset_map a utf-8 { 80 D090D0; }", "invalid value \"D090D0\""),
            ("charset_map a utf-8 { 80 4142; }", "invalid value \"4142\""),
            ("charset_map a utf-8 { 80 F09F9880; }", "invalid value \"F09F9880\""),
        ] {
            let found = error(&format!("http {{\n{text} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
        }
    }
}
