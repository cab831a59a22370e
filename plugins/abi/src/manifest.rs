//! The TOML manifest that [`export_plugin!`](crate::export_plugin) generates when a plugin is
//! compiled.

use crate::types::{ABI_MAJOR, ABI_MINOR};

/// Maximum bytes of a backend's name.
const MAX_NAME: usize = 32;

/// Returns true for a backend name that is valid in selectors: up to 32 lower-case letters, digits,
/// `-` and `_`, and not `auto`.
pub const fn is_backend_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if !matches!(bytes[i], b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') {
            return false;
        }
        i += 1;
    }
    !bytes.is_empty() && bytes.len() <= MAX_NAME && !matches!(bytes, b"auto")
}

/// The contents of a manifest.
#[derive(Clone, Copy, Debug)]
pub struct Manifest<'a> {
    /// Name of the backend.
    pub name: &'a str,
    /// Version of the plugin.
    pub version: &'a str,
    /// Description for users.
    pub description: &'a str,
}

impl Manifest<'_> {
    /// Returns the bytes of the text, including its NUL.
    pub const fn size(&self) -> usize {
        self.write(&mut [])
    }

    /// Returns the text with its NUL. `SIZE` is [`Manifest::size`].
    pub const fn bytes<const SIZE: usize>(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        assert!(self.write(&mut bytes) == SIZE, "the size differs");
        bytes
    }

    /// Writes as much of the text as fits, and returns the size of the whole text.
    const fn write(&self, out: &mut [u8]) -> usize {
        const { assert!(ABI_MAJOR < 10 && ABI_MINOR < 10, "versions have one digit") };
        let version = [b'0' + ABI_MAJOR as u8, b'.', b'0' + ABI_MINOR as u8];
        let mut writer = Writer { out, len: 0 };
        writer.line(b"name", self.name.as_bytes());
        writer.line(b"version", self.version.as_bytes());
        writer.line(b"abi", &version);
        writer.line(b"description", self.description.as_bytes());
        writer.put(0);
        writer.len
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    /// Number of bytes written so far, including those that did not fit.
    len: usize,
}

impl Writer<'_> {
    const fn put(&mut self, byte: u8) {
        if self.len < self.out.len() {
            self.out[self.len] = byte;
        }
        self.len += 1;
    }

    const fn all(&mut self, bytes: &[u8]) {
        let mut i = 0;
        while i < bytes.len() {
            self.put(bytes[i]);
            i += 1;
        }
    }

    /// Writes a line `key = "value"`. Descriptions in `Cargo.toml` may have several lines, while
    /// listings have one: each run of control characters becomes a space, except at the ends.
    const fn line(&mut self, key: &[u8], value: &[u8]) {
        self.all(key);
        self.all(b" = \"");
        let start = self.len;
        let mut space = false;
        let mut i = 0;
        while i < value.len() {
            let control = control_len(value, i);
            if control > 0 {
                space = self.len > start;
                i += control;
                continue;
            }
            if space {
                self.put(b' ');
                space = false;
            }
            if matches!(value[i], b'"' | b'\\') {
                self.put(b'\\');
            }
            self.put(value[i]);
            i += 1;
        }
        self.all(b"\"\n");
    }
}

/// Returns the number of bytes of the control character at this offset in UTF-8 text; 0 if there is
/// none.
const fn control_len(text: &[u8], at: usize) -> usize {
    match text[at] {
        0..=0x1f | 0x7f => 1,
        // U+0080 to U+009F.
        0xc2 if at + 1 < text.len() && text[at + 1] < 0xa0 => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the text as TOML.
    fn read(manifest: Manifest) -> toml::Table {
        let mut bytes = vec![0; manifest.size()];
        assert_eq!(manifest.write(&mut bytes), bytes.len());
        assert_eq!(bytes.pop(), Some(0));
        assert!(!bytes.contains(&0), "it ends at its end");
        let text = String::from_utf8(bytes).expect("UTF-8");
        toml::from_str(&text).unwrap_or_else(|e| panic!("{e} in {text}"))
    }

    #[test]
    fn whatever_is_in_a_description_is_read_back() {
        for (description, shown) in [
            ("", ""),
            ("Plain loops", "Plain loops"),
            (r#"The "fast" one"#, r#"The "fast" one"#),
            (r"C:\new\u0041 \", r"C:\new\u0041 \"),
            ("\"\"\"", "\"\"\""),
            ("Räder für 加速器 🚀", "Räder für 加速器 🚀"),
            ("\nTwo lines,\r\n\ta third\u{85}one.\n", "Two lines, a third one."),
            ("nul \0 bell \u{7} delete \u{7f}", "nul   bell   delete "),
            ("# name = \"other\"", "# name = \"other\""),
        ] {
            let manifest = Manifest {
                name: "mine",
                version: "0.1.0-rc.1+\"x\"",
                description,
            };
            let table = read(manifest);
            assert_eq!(table["description"].as_str(), Some(shown), "{description:?}");
            assert_eq!(table["name"].as_str(), Some("mine"));
            assert_eq!(table["version"].as_str(), Some("0.1.0-rc.1+\"x\""));
            assert_eq!(table["abi"].as_str(), Some("1.0"));
        }
    }

    #[test]
    fn it_is_made_while_compiling() {
        const MANIFEST: Manifest = Manifest {
            name: "a",
            version: "1",
            description: "\"",
        };
        const SIZE: usize = MANIFEST.size();
        static BYTES: [u8; SIZE] = MANIFEST.bytes();
        let text = b"name = \"a\"\nversion = \"1\"\nabi = \"1.0\"\ndescription = \"\\\"\"\n\0";
        assert_eq!(BYTES, *text);
    }

    #[test]
    fn names_are_those_of_selectors() {
        for name in ["a", "loops", "my-backend_2", "auto2", &"x".repeat(32)] {
            assert!(is_backend_name(name), "{name}");
        }
        for name in [
            "",
            "auto",
            "Loops",
            "a b",
            "a:0",
            "a\"",
            "ä",
            "../evil",
            &"x".repeat(33),
        ] {
            assert!(!is_backend_name(name), "{name}");
        }
    }
}
