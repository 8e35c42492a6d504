//! The guest's kernel: the ELF file inside a bzImage, and the modules that drivers need, in loading order.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::tool;

/// Where the boot protocol keeps its magic, "HdrS".
const MAGIC: usize = 0x202;
const SETUP_SECTORS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
const XZ: &[u8] = b"\xfd7zXZ\0";
const ELF: &[u8] = b"\x7fELF";

/// The compressed kernel in a bzImage.
#[derive(Debug, PartialEq, Eq)]
struct Payload<'a> {
    /// One XZ stream.
    xz: &'a [u8],
    /// Bytes once it is unpacked.
    size: u32,
}

/// Finds it through the header of the boot protocol.
fn payload(image: &[u8]) -> Result<Payload<'_>> {
    ensure!(image.get(MAGIC..MAGIC + 4) == Some(b"HdrS"), "no Linux kernel: no boot header");
    let sectors = match image[SETUP_SECTORS] {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let offset = (sectors + 1) * SECTOR + number(image, PAYLOAD_OFFSET)? as usize;
    let end = offset + number(image, PAYLOAD_LENGTH)? as usize;
    let payload = image.get(offset..end).context("the payload reaches beyond the end of the file")?;
    ensure!(
        payload.starts_with(XZ),
        "the payload is not compressed with xz: it begins {:02x?}",
        &payload[..payload.len().min(6)]
    );
    // The kernel's build appends the size.
    let at = payload.len() - 4;
    Ok(Payload { xz: &payload[..at], size: number(payload, at)? })
}

fn number(bytes: &[u8], at: usize) -> Result<u32> {
    let field =
        bytes.get(at..).and_then(|rest| rest.first_chunk()).context("the kernel ends in its header")?;
    Ok(u32::from_le_bytes(*field))
}

/// Writes the ELF kernel of `image` to `vmlinux`, which QEMU enters directly: no decompressor runs in the guest.
pub(super) fn extract(image: &Path, vmlinux: &Path) -> Result<()> {
    let bytes = fs::read(image).with_context(|| format!("cannot read {}", image.display()))?;
    let payload = payload(&bytes).with_context(|| image.display().to_string())?;
    let packed = vmlinux.with_extension("xz");
    fs::write(&packed, payload.xz).with_context(|| format!("cannot write {}", packed.display()))?;
    tool::run(Command::new("xz").args(["--decompress", "--force"]).arg(&packed))?;
    let kernel = fs::read(vmlinux).with_context(|| format!("cannot read {}", vmlinux.display()))?;
    ensure!(
        kernel.starts_with(ELF) && kernel.len() == payload.size as usize,
        "{} holds no whole ELF kernel: {} bytes of {}",
        image.display(),
        kernel.len(),
        payload.size
    );
    Ok(())
}

/// The modules below a `lib/modules/VERSION`.
#[derive(Debug)]
pub(super) struct Modules {
    files: BTreeMap<String, PathBuf>,
    /// Part of the kernel itself.
    builtin: Vec<String>,
}

impl Modules {
    pub(super) fn below(dir: &Path) -> Result<Self> {
        let builtin = fs::read_to_string(dir.join("modules.builtin"))
            .with_context(|| format!("cannot read the list of built-in modules in {}", dir.display()))?;
        let builtin = builtin.lines().filter_map(|line| module_name(Path::new(line))).collect();
        let mut files = BTreeMap::new();
        let mut dirs = vec![dir.to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else if let Some(name) = module_name(&entry.path()) {
                    files.insert(name, entry.path());
                }
            }
        }
        Ok(Self { files, builtin })
    }

    /// `wanted` and all they depend on, each after its dependencies: (name, contents).
    pub(super) fn in_order(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut loaded = Vec::new();
        for name in wanted {
            self.load(name, &mut loaded)?;
        }
        Ok(loaded)
    }

    fn load(&self, name: &str, loaded: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
        if loaded.iter().any(|(known, _)| known == name) || self.builtin.iter().any(|known| known == name) {
            return Ok(());
        }
        let path = self.files.get(name).with_context(|| format!("this kernel has no module {name}"))?;
        let module = contents(path)?;
        for dependency in depends(&module) {
            self.load(&dependency, loaded)?;
        }
        loaded.push((name.to_owned(), module));
        Ok(())
    }
}

/// `rdma_rxe` for `.../rdma_rxe.ko` and `.../rdma-rxe.ko.xz`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(stem.replace('-', "_"))
}

/// Newer Debian kernels come with compressed modules.
fn contents(path: &Path) -> Result<Vec<u8>> {
    let mut path = path.to_path_buf();
    if path.extension().is_some_and(|extension| extension == "xz") {
        tool::run(Command::new("xz").args(["--decompress", "--force"]).arg(&path))?;
        path.set_extension("");
    }
    let module = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    if !module.starts_with(ELF) {
        bail!("{} is no kernel module", path.display());
    }
    Ok(module)
}

/// The modules that a module's own information names.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bzImage with nothing in it but what is looked at.
    fn image(sectors: u8, offset: u32, payload: &[u8]) -> Vec<u8> {
        let start = (usize::from(if sectors == 0 { 4 } else { sectors }) + 1) * SECTOR + offset as usize;
        let mut image = vec![0; start];
        image[SETUP_SECTORS] = sectors;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&offset.to_le_bytes());
        let length = u32::try_from(payload.len()).unwrap();
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(b"what follows");
        image
    }

    fn packed(data: &[u8], size: u32) -> Vec<u8> {
        [XZ, data, &size.to_le_bytes()].concat()
    }

    #[test]
    fn the_payload_is_where_the_header_says() {
        let body = packed(b"body", 0x1234);
        for (sectors, offset) in [(39, 716), (0, 0), (1, 3)] {
            let image = image(sectors, offset, &body);
            let found = payload(&image).unwrap();
            assert_eq!(found, Payload { xz: &body[..body.len() - 4], size: 0x1234 });
        }
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let text = |bytes: &[u8]| format!("{:#}", payload(bytes).unwrap_err());
        assert!(text(b"short").contains("no boot header"));
        assert!(
            text(&image(1, 0, b"\x1f\x8b\x08\0\0\0\0\0"))
                .contains("not compressed with xz: it begins [1f, 8b")
        );
        let mut cut = image(1, 0, &packed(&[0; 100], 1));
        cut.truncate(2 * SECTOR + 50);
        assert!(text(&cut).contains("beyond the end"));
    }

    #[test]
    fn dependencies_are_read_from_the_module_itself() {
        let module = [ELF, b"..\0license=GPL\0depends=ib_core,ip6-udp_tunnel\0name=x\0"].concat();
        assert_eq!(depends(&module), ["ib_core", "ip6_udp_tunnel"]);
        assert_eq!(depends(&[ELF, b"\0depends=\0"].concat()), [""; 0]);
        assert_eq!(depends(b"none"), [""; 0]);
    }

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let dir = crate::vm::scratch_for_tests("modules");
        let module = |name: &str, depends: &str| {
            fs::write(dir.join(name), [ELF, format!("\0depends={depends}\0").as_bytes()].concat()).unwrap();
        };
        module("rdma_rxe.ko", "ib_core,udp-tunnel,crc32");
        module("udp_tunnel.ko", "");
        module("ib_core.ko", "udp_tunnel");
        module("lonely.ko", "not_there");
        fs::write(dir.join("modules.builtin"), "kernel/lib/crc32.ko\n").unwrap();
        let modules = Modules::below(&dir).unwrap();
        let names: Vec<String> =
            modules.in_order(&["rdma_rxe", "ib_core"]).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["udp_tunnel", "ib_core", "rdma_rxe"]);
        let error = modules.in_order(&["lonely"]).unwrap_err();
        assert!(error.to_string().contains("no module not_there"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
