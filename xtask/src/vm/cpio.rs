//! Archives as the kernel unpacks them into its first file system: cpio in the "newc" format. Everything belongs to
//! root, so nobody needs to be root to make one.

const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive in the making. Folders come before what they hold.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn folder(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, &[]);
    }

    pub(super) fn file(&mut self, path: &str, data: &[u8]) {
        self.entry(path, FILE | 0o644, data);
    }

    pub(super) fn program(&mut self, path: &str, data: &[u8]) {
        self.entry(path, FILE | 0o755, data);
    }

    pub(super) fn link(&mut self, path: &str, to: &str) {
        self.entry(path, LINK | 0o777, to.as_bytes());
    }

    /// Another archive may follow directly.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(data.len()).expect("newc holds files below 4 GiB");
        let name = u32::try_from(path.len() + 1).expect("paths are short");
        let (inode, owner, group, time, device, check) = (self.entries, 0, 0, 0, 0, 0);
        self.bytes.extend_from_slice(b"070701");
        for field in
            [inode, mode, owner, group, links, time, size, device, device, device, device, name, check]
        {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_laid_out_as_the_kernel_reads_it() {
        let mut archive = Archive::default();
        archive.program("a/b", b"hello");
        let bytes = archive.finish();
        let header = "070701\
                      00000001000081ed0000000000000000\
                      00000001000000000000000500000000\
                      00000000000000000000000000000004\
                      00000000";
        assert_eq!(&bytes[..110], header.as_bytes());
        // 110 bytes of header and 4 of name make 114: two more to the next multiple of four.
        assert_eq!(&bytes[110..124], b"a/b\0\0\0hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert!(bytes.windows(11).any(|window| window == b"TRAILER!!!\0"));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn kinds_have_their_modes() {
        let mut archive = Archive::default();
        archive.folder("d");
        archive.link("d/l", "../x");
        archive.file("f", b"");
        let bytes = archive.finish();
        let mode = |at: usize| std::str::from_utf8(&bytes[at + 14..at + 22]).unwrap().to_owned();
        let starts: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"070701")).collect();
        assert_eq!(mode(starts[0]), "000041ed");
        assert_eq!(mode(starts[1]), "0000a1ff");
        assert_eq!(mode(starts[2]), "000081a4");
        assert!(bytes.windows(4).any(|window| window == b"../x"));
    }
}
