//! How the guest's command ended, told twice: in a line on the serial port, and by QEMU's own exit code. Both must say the
//! same, so that neither a crash nor a stray line passes for success.

/// An exit status, as shells have it: 128 and a signal's number for a command that a signal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ending(pub(super) u8);

impl Ending {
    /// What QEMU's isa-debug-exit makes of it: 2v + 1, of which a process can return eight bits.
    fn qemu_code(self) -> i32 {
        i32::from((self.0 << 1) | 1)
    }

    /// Did QEMU end with the code that belongs to this?
    pub(super) fn agrees_with(self, qemu: Option<i32>) -> bool {
        qemu == Some(self.qemu_code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_qemu() {
        let codes = [(0, 1), (1, 3), (7, 15), (127, 255), (128, 1), (137, 19), (255, 255)];
        for (status, code) in codes {
            assert!(Ending(status).agrees_with(Some(code)), "{status}");
        }
    }

    #[test]
    fn a_reboot_a_signal_or_another_status_is_no_agreement() {
        assert!(!Ending(0).agrees_with(Some(0)), "a panic reboots, and QEMU ends with 0");
        assert!(!Ending(0).agrees_with(None));
        assert!(!Ending(0).agrees_with(Some(3)));
    }

    #[test]
    fn no_status_looks_like_a_clean_end_of_qemu() {
        assert!((0..=255).all(|status| Ending(status).qemu_code() % 2 == 1));
    }
}
