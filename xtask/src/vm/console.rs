//! What comes over the guest's serial ports: the command's bytes, and between them the lines by which the guest's first
//! process speaks to us. Those begin with a mark that carries a random token, so that no output can be taken for them.

use std::mem;

use super::ending::Ending;

/// A part of what a port brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// To be passed on as it is.
    Bytes(Vec<u8>),
    /// The guest's first process says something.
    Said(Said),
}

/// What the guest's first process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// The kernel is up; after so many seconds.
    Hello(String),
    /// Something for people.
    Note(String),
    /// The set-up failed.
    Broken(String),
    /// The command runs now; after so many seconds.
    Ready(String),
    /// The last bytes of this port came before this.
    End,
    /// How the command ended.
    Exit(Ending),
    /// Nothing that we know.
    Unknown(String),
}

/// Takes a port's bytes apart, in whatever pieces they come.
#[derive(Debug)]
pub(super) struct Scanner {
    mark: Vec<u8>,
    held: Vec<u8>,
}

impl Scanner {
    pub(super) fn new(token: &str) -> Self {
        Self { mark: format!("[vm {token}] ").into_bytes(), held: Vec::new() }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.held.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        while let Some(at) = find(&self.held, &self.mark) {
            pieces.extend(self.take(at));
            let Some(end) = self.held.iter().position(|byte| *byte == b'\n') else { return pieces };
            let line: Vec<u8> = self.held.drain(..=end).collect();
            let text = String::from_utf8_lossy(&line[self.mark.len()..]);
            pieces.push(Piece::Said(said(text.trim_end())));
        }
        // The end may be the beginning of a mark.
        let keep = (1..self.mark.len()).rev().find(|n| self.held.ends_with(&self.mark[..*n])).unwrap_or(0);
        pieces.extend(self.take(self.held.len() - keep));
        pieces
    }

    /// What is left when no more bytes come.
    pub(super) fn rest(&mut self) -> Option<Piece> {
        self.take(self.held.len())
    }

    fn take(&mut self, n: usize) -> Option<Piece> {
        let rest = self.held.split_off(n);
        let bytes = mem::replace(&mut self.held, rest);
        (!bytes.is_empty()).then_some(Piece::Bytes(bytes))
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn said(text: &str) -> Said {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest = rest.to_owned();
    match word {
        "hello" => Said::Hello(rest),
        "note" => Said::Note(rest),
        "broken" => Said::Broken(rest),
        "ready" => Said::Ready(rest),
        "end" => Said::End,
        "exit" => {
            rest.parse().map_or_else(|_| Said::Unknown(text.to_owned()), |status| Said::Exit(Ending(status)))
        }
        _ => Said::Unknown(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"dmesg\r\n[vm 7f] hello 1.4\r\n[vm 7f] note a b\r\nout[vm 7f] ready 2\n[vm x] no\xFF[vm 7f] exit 7\nlast";

    /// Bytes that follow each other become one.
    fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
        let mut joined: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (Some(Piece::Bytes(sum)), Piece::Bytes(more)) => sum.extend(more),
                (_, piece) => joined.push(piece),
            }
        }
        joined
    }

    fn expected() -> Vec<Piece> {
        let bytes = |bytes: &[u8]| Piece::Bytes(bytes.to_vec());
        vec![
            bytes(b"dmesg\r\n"),
            Piece::Said(Said::Hello("1.4".into())),
            Piece::Said(Said::Note("a b".into())),
            bytes(b"out"),
            Piece::Said(Said::Ready("2".into())),
            bytes(b"[vm x] no\xFF"),
            Piece::Said(Said::Exit(Ending(7))),
            bytes(b"last"),
        ]
    }

    #[test]
    fn lines_are_found_however_the_bytes_come() {
        for size in 1..=STREAM.len() {
            let mut scanner = Scanner::new("7f");
            let mut pieces: Vec<Piece> = STREAM.chunks(size).flat_map(|chunk| scanner.feed(chunk)).collect();
            pieces.extend(scanner.rest());
            assert_eq!(joined(pieces), expected(), "in pieces of {size}");
        }
    }

    #[test]
    fn bytes_are_not_held_back_without_need() {
        let mut scanner = Scanner::new("7f");
        assert_eq!(scanner.feed(b"prompt# "), [Piece::Bytes(b"prompt# ".to_vec())]);
        assert_eq!(scanner.feed(b"x[v"), [Piece::Bytes(b"x".to_vec())]);
        assert_eq!(scanner.feed(b"y"), [Piece::Bytes(b"[vy".to_vec())]);
        assert_eq!(scanner.rest(), None);
    }

    #[test]
    fn what_cannot_be_a_status_is_none() {
        for text in ["exit", "exit x", "exit 256", "exit -1"] {
            assert_eq!(said(text), Said::Unknown(text.into()));
        }
        assert_eq!(said("exit 255"), Said::Exit(Ending(255)));
        assert_eq!(said("end"), Said::End);
        assert_eq!(said("endless"), Said::Unknown("endless".into()));
    }
}
