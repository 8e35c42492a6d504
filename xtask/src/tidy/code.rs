//! Rust text without its comments and strings, so that a word in them is not taken for code.

/// Blanks comments and the insides of string and character literals; lines keep their places.
pub(super) fn only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut blanked = Blanked { chars: &chars, at: 0, text: String::with_capacity(text.len()) };
    while blanked.at < chars.len() {
        blanked.step();
    }
    blanked.text
}

struct Blanked<'a> {
    chars: &'a [char],
    at: usize,
    text: String,
}

impl Blanked<'_> {
    fn step(&mut self) {
        let word_before = self.at > 0 && is_word(self.chars[self.at - 1]);
        match self.chars[self.at] {
            '/' if self.peek(1) == Some('/') => self.blank_until(|s| s.peek(0) == Some('\n')),
            '/' if self.peek(1) == Some('*') => self.block_comment(),
            '"' => self.string(),
            'r' if !word_before && self.raw_hashes(1).is_some() => self.raw_string(1),
            'b' | 'c' if !word_before && self.peek(1) == Some('r') && self.raw_hashes(2).is_some() => {
                self.raw_string(2);
            }
            '\'' => self.quote(),
            _ => self.keep(),
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn keep(&mut self) {
        self.text.push(self.chars[self.at]);
        self.at += 1;
    }

    fn blank(&mut self) {
        self.text.push(if self.chars[self.at] == '\n' { '\n' } else { ' ' });
        self.at += 1;
    }

    fn blank_until(&mut self, end: impl Fn(&Self) -> bool) {
        while self.at < self.chars.len() && !end(self) {
            self.blank();
        }
    }

    fn blank_some(&mut self, count: usize) {
        for _ in 0..count.min(self.chars.len() - self.at) {
            self.blank();
        }
    }

    /// Block comments nest.
    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                _ => {
                    self.blank();
                    continue;
                }
            }
            self.blank_some(2);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.keep();
        while let Some(c) = self.peek(0) {
            match c {
                '\\' => self.blank_some(2),
                '"' => return self.keep(),
                _ => self.blank(),
            }
        }
    }

    /// How many hashes follow `r` at `ahead`, if that begins a raw string.
    fn raw_hashes(&self, ahead: usize) -> Option<usize> {
        let hashes = (ahead..).take_while(|at| self.peek(*at) == Some('#')).count();
        (self.peek(ahead + hashes) == Some('"')).then_some(hashes)
    }

    fn raw_string(&mut self, prefix: usize) {
        let hashes = self.raw_hashes(prefix).unwrap_or(0);
        self.blank_some(prefix + hashes + 1);
        let closes = |s: &Self| s.peek(0) == Some('"') && (1..=hashes).all(|at| s.peek(at) == Some('#'));
        self.blank_until(closes);
        self.blank_some(1 + hashes);
    }

    /// A character literal, or the tick of a lifetime.
    fn quote(&mut self) {
        match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                self.blank_some(3);
                self.blank_until(|s| s.peek(0) == Some('\''));
                self.blank_some(1);
            }
            (Some(_), Some('\'')) => self.blank_some(3),
            _ => self.keep(),
        }
    }
}

/// Part of an identifier?
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Does `line` have `word` on its own, not as part of a longer identifier?
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_lines_stay() {
        assert_eq!(only("a // b\nc"), "a     \nc");
        assert_eq!(only("a /* b /* c */\nd */ e"), "a             \n     e");
    }

    #[test]
    fn strings_lose_their_insides() {
        assert_eq!(only(r#"f("a\"b") + c"#), r#"f("    ") + c"#);
        assert_eq!(only("x(\"// no comment\") y"), "x(\"             \") y");
        assert_eq!(only("a r#\"b \" c\"# d"), "a            d");
        assert_eq!(only("a br\"b\" d").trim_end(), "a       d");
    }

    #[test]
    fn lifetimes_are_no_character_literals() {
        assert_eq!(only("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(only("x == '\"' && y"), "x ==     && y");
        assert_eq!(only(r"x == '\'' && y"), "x ==      && y");
        assert_eq!(only("for"), "for");
    }

    #[test]
    fn a_word_is_not_its_part() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(!has_word("myunsafe", "unsafe"));
    }
}
