//! Reads the JSON that cargo prints. Written here because xtask has no dependencies and builds in seconds.

use std::collections::BTreeMap;

use crate::failure::Failure;

/// A JSON value. Numbers stay text: nothing here calculates with them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Truth(bool),
    /// A number, as written.
    Number(String),
    /// A string, unescaped.
    Text(String),
    /// `[...]`
    List(Vec<Json>),
    /// `{...}`
    Map(BTreeMap<String, Json>),
}

impl Json {
    /// Reads one whole document.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut reader = Reader { text, position: 0 };
        let value = reader.value(0)?;
        reader.skip_whitespace();
        if reader.position == text.len() { Ok(value) } else { Err(reader.failure("the end")) }
    }

    /// The value under a key, if this is a map that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(entries) => entries.get(key),
            _ => None,
        }
    }

    /// The text, if this is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The items, if this is a list; nothing otherwise.
    pub(crate) fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

/// Deeper than anything cargo prints, and shallow enough for the stack.
const DEEPEST_NESTING: usize = 200;

struct Reader<'text> {
    text: &'text str,
    position: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, Failure> {
        if depth > DEEPEST_NESTING {
            return Err(self.failure("less nesting"));
        }
        self.skip_whitespace();
        match self.peek() {
            Some('{') => self.map(depth),
            Some('[') => self.list(depth),
            Some('"') => self.string().map(Json::Text),
            Some('n') => self.word("null", Json::Null),
            Some('t') => self.word("true", Json::Truth(true)),
            Some('f') => self.word("false", Json::Truth(false)),
            Some(character) if character == '-' || character.is_ascii_digit() => Ok(self.number()),
            _ => Err(self.failure("a value")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Json, Failure> {
        let mut entries = BTreeMap::new();
        self.take('{')?;
        self.skip_whitespace();
        if self.take_if('}') {
            return Ok(Json::Map(entries));
        }
        loop {
            self.skip_whitespace();
            let key = self.string()?;
            self.skip_whitespace();
            self.take(':')?;
            let value = self.value(depth + 1)?;
            entries.insert(key, value);
            self.skip_whitespace();
            if !self.take_if(',') {
                self.take('}')?;
                return Ok(Json::Map(entries));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, Failure> {
        let mut items = Vec::new();
        self.take('[')?;
        self.skip_whitespace();
        if self.take_if(']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_whitespace();
            if !self.take_if(',') {
                self.take(']')?;
                return Ok(Json::List(items));
            }
        }
    }

    fn string(&mut self) -> Result<String, Failure> {
        self.take('"')?;
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escaped()?),
                Some(character) => text.push(character),
                None => return Err(self.failure("a closing quote")),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, Failure> {
        match self.next() {
            Some('n') => Ok('\n'),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some(character @ ('"' | '\\' | '/')) => Ok(character),
            Some('u') => {
                let unit = self.text.get(self.position..self.position + 4);
                let code = unit.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let Some(code) = code else {
                    return Err(self.failure("four hexadecimal digits"));
                };
                self.position += 4;
                // Half of a surrogate pair becomes the replacement character: cargo writes such
                // characters as UTF-8, and no name that is compared here can contain one.
                Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
            }
            _ => Err(self.failure("an escaped character")),
        }
    }

    fn number(&mut self) -> Json {
        let start = self.position;
        while matches!(self.peek(), Some('-' | '+' | '.' | 'e' | 'E' | '0'..='9')) {
            self.position += 1;
        }
        Json::Number(self.text[start..self.position].to_owned())
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, Failure> {
        if self.text[self.position..].starts_with(word) {
            self.position += word.len();
            Ok(value)
        } else {
            Err(self.failure(word))
        }
    }

    fn take(&mut self, expected: char) -> Result<(), Failure> {
        if self.take_if(expected) { Ok(()) } else { Err(self.failure(&format!("`{expected}`"))) }
    }

    fn take_if(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        if found {
            self.position += expected.len_utf8();
        }
        found
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.position += character.len_utf8();
        Some(character)
    }

    fn peek(&self) -> Option<char> {
        self.text[self.position..].chars().next()
    }

    fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(' ' | '\n' | '\r' | '\t')) {
            self.position += 1;
        }
    }

    fn failure(&self, expected: &str) -> Failure {
        Failure::new(format!("the JSON does not hold {expected} at byte {}", self.position))
    }
}

#[cfg(test)]
mod tests {
    use super::Json;

    #[test]
    fn a_document_of_every_kind_of_value_is_read() {
        let document = Json::parse(
            r#" {"a": [1, -2.5e3, true, false, null], "b": {"ü\n\"\u0041": "c"}, "d": [], "e": {}} "#,
        )
        .unwrap();
        let numbers = document.get("a").unwrap().items();
        assert_eq!(numbers.len(), 5);
        assert_eq!(numbers[1], Json::Number("-2.5e3".to_owned()));
        assert_eq!(numbers[4], Json::Null);
        assert_eq!(document.get("b").unwrap().get("ü\n\"A").unwrap().as_text(), Some("c"));
        assert!(document.get("d").unwrap().items().is_empty());
    }

    #[test]
    fn broken_documents_are_refused() {
        for broken in
            ["", "{", "[1,]", "{\"a\" 1}", "\"open", "nul", "1 2", "\"\\u00\"", "\"\\uü234\"", "{,}"]
        {
            assert!(Json::parse(broken).is_err(), "{broken:?} was accepted");
        }
        let endless = "[".repeat(100_000);
        assert!(Json::parse(&endless).is_err());
    }
}
