//! Text that others wrote: cut and escaped where it is decoded, before it is held, logged or repeated.

use serde::{Deserialize, Deserializer};

/// The longest value that is repeated, in characters.
pub const VALUE: usize = 120;
/// The longest sentence of another program that is repeated, in characters.
pub const SENTENCE: usize = 600;
/// The longest line of a log, in characters.
pub const LINE: usize = 8192;

/// The longest text of several sentences, in characters.
pub const ANSWER: usize = 4000;

/// Stands for what was cut off.
const CUT: char = '…';

/// `text` as a value: one line of at most [`VALUE`] printable characters.
pub fn value(text: &str) -> String {
    shortened(text, VALUE)
}

/// [`value`] in quotation marks.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", value(text))
}

/// `text` as a sentence of another program, such as an error of a server.
pub fn sentence(text: &str) -> String {
    shortened(text, SENTENCE)
}

/// `text` as several sentences, such as all that went wrong.
pub fn answer(text: &str) -> String {
    shortened(text, ANSWER)
}

/// `text` as one line of a log or a terminal, whatever others wrote into it.
pub fn line(text: &str) -> String {
    shortened(text, LINE)
}

/// Equal JSON of printable characters only, except for the line ends between its values.
pub fn printable_json(json: String) -> String {
    if json.split('\n').all(is_printable) {
        return json;
    }
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || is_plain(character) {
            shown.push(character);
        } else {
            let mut units = [0; 2];
            let units = character.encode_utf16(&mut units).iter();
            shown.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

/// Whether no character of `text` moves a cursor, ends a line, or changes the direction of text.
pub fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || text.chars().all(is_plain)
}

/// For `#[serde(deserialize_with)]` of a value.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| value(&text))
}

/// At most `longest` characters, escapes and the mark of the cut included.
fn shortened(text: &str, longest: usize) -> String {
    // Most texts.
    if text.len() <= longest && is_printable(text) {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut length = 0;
    for character in text.chars() {
        let escaped = escaped(character);
        length += escaped.chars().count();
        if length > longest {
            return shown.chars().take(longest.saturating_sub(1)).chain([CUT]).collect();
        }
        shown.push_str(&escaped);
    }
    shown
}

fn escaped(character: char) -> String {
    if is_plain(character) { character.into() } else { character.escape_debug().collect() }
}

/// The library escapes what is not printable: control and format characters, combining marks at
/// the start, line separators. Quotation marks and backslashes are harmless here.
fn is_plain(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_text_is_not_changed() {
        for text in ["", "10.5.52.0-24", "node \"a\" isn't C:\\b", "Knoten-München", "节点"] {
            assert_eq!(value(text), text);
        }
    }

    #[test]
    fn long_text_is_cut() {
        let long = "a".repeat(60_000);
        assert_eq!(value(&long), format!("{}…", "a".repeat(119)));
        assert_eq!(sentence(&long).chars().count(), SENTENCE);
        assert_eq!(value(&"a".repeat(VALUE)), "a".repeat(VALUE));
    }

    #[test]
    fn control_characters_and_direction_marks_are_escaped() {
        let cases = [
            ("a\nb\t\r", "a\\nb\\t\\r"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{7f}\u{80}\u{9b}", "\\u{7f}\\u{80}\\u{9b}"),
            ("\u{202e}\u{2066}\u{200f}\u{61c}", "\\u{202e}\\u{2066}\\u{200f}\\u{61c}"),
            ("\u{2028}\u{feff}\0", "\\u{2028}\\u{feff}\\0"),
        ];
        for (text, shown) in cases {
            assert_eq!(value(text), shown);
            assert!(!is_printable(text) && is_printable(shown), "{shown}");
        }
    }

    #[test]
    fn a_long_line_is_cut_and_stays_one_line() {
        let forged = "a\n2026-01-01 ERROR the disk is full";
        assert_eq!(line(forged), "a\\n2026-01-01 ERROR the disk is full");
        assert_eq!(line(&"a".repeat(60_000)).chars().count(), LINE);
    }

    #[test]
    fn json_is_printable_and_parses_to_the_same_value() {
        let texts =
            ["plain", "\u{9b}31m", "\u{202e}evil", "\u{e0001}\u{10ffff}", "a\nb", "München"];
        for text in texts {
            let written = serde_json::to_string_pretty(&[text]).unwrap();
            let json = printable_json(written.clone());
            assert!(json.lines().all(is_printable), "{json:?}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
            assert_eq!(json.lines().count(), written.lines().count());
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_short_printable_line(text in "(?s).{0,300}") {
            let shown = value(&text);
            prop_assert!(shown.chars().count() <= VALUE);
            prop_assert!(is_printable(&shown));
            // A value that was cut and escaped once is not changed again.
            prop_assert_eq!(value(&shown), shown);
        }
    }
}
