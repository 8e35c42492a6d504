//! RDMA devices as sysfs shows them, so that nothing here links libibverbs.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Headers beside the payload that the kernel reserves when it makes a path MTU of an interface's MTU, bytes.
const HEADERS: u32 = 96;

/// `/sys/class`, or a tree like it.
#[derive(Debug, Clone)]
pub(crate) struct Sysfs {
    class: PathBuf,
}

/// A port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) device: String,
    /// From 1.
    pub(crate) number: u8,
    /// "ACTIVE", "DOWN", ...
    pub(crate) state: String,
    /// "Ethernet" or "InfiniBand".
    pub(crate) link_layer: String,
    pub(crate) interface: Option<Interface>,
    pub(crate) gids: GidTable,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    /// Bytes.
    pub(crate) mtu: u32,
}

/// The entries of a port's GID table that are in use, in the order of their indices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GidTable(Vec<GidEntry>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GidEntry {
    /// Its index in the table, which may have holes.
    pub(crate) index: u32,
    pub(crate) gid: Ipv6Addr,
    /// "RoCE v2" or "IB/RoCE v1".
    pub(crate) kind: String,
    /// The interface whose address it is.
    pub(crate) interface: String,
}

impl Sysfs {
    pub(crate) fn of_the_machine() -> Self {
        Self { class: PathBuf::from("/sys/class") }
    }

    #[cfg(test)]
    pub(crate) fn at(class: &Path) -> Self {
        Self { class: class.to_path_buf() }
    }

    fn device(&self, name: &str) -> PathBuf {
        self.class.join("infiniband").join(name)
    }

    /// Names of the devices, sorted.
    pub(crate) fn devices(&self) -> Vec<String> {
        names_in(&self.class.join("infiniband"))
    }

    /// Numbers of a device's ports.
    pub(crate) fn ports(&self, device: &str) -> Vec<u8> {
        let mut ports: Vec<u8> = names_in(&self.device(device).join("ports"))
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        ports.sort_unstable();
        ports
    }

    /// Is this the kernel's soft-RoCE?
    pub(crate) fn is_rxe(&self, device: &str) -> bool {
        self.device(device).join("parent").is_file()
    }

    /// The CPUs beside the device, such as "0-15"; `None` where it says none.
    pub(crate) fn near_cpus(&self, device: &str) -> Option<String> {
        read(&self.device(device).join("device/local_cpulist")).filter(|list| !list.is_empty())
    }

    /// Reads a port; the error names the devices or ports there are.
    pub(crate) fn port(&self, device: &str, number: u8) -> Result<Port> {
        if !self.devices().iter().any(|name| name == device) {
            bail!("no RDMA device {device:?}; {}", self.list_of_devices());
        }
        let ports = self.ports(device);
        if !ports.contains(&number) {
            let known = ports.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            bail!("{device} has no port {number}; there are: {known}");
        }
        let dir = self.device(device).join("ports").join(number.to_string());
        let value = |name: &str| {
            read(&dir.join(name)).with_context(|| format!("cannot read {}", dir.join(name).display()))
        };
        // "4: ACTIVE"
        let state = value("state")?;
        let gids = read_gids(&dir);
        Ok(Port {
            device: device.to_owned(),
            number,
            state: state.rsplit(": ").next().unwrap_or_default().to_owned(),
            link_layer: value("link_layer")?,
            interface: self.interface_of(device, number, &gids),
            gids,
        })
    }

    /// "there are: mlx5_0, rxe0", or how to get one.
    pub(crate) fn list_of_devices(&self) -> String {
        let devices = self.devices();
        if devices.is_empty() {
            return "this machine has none: load the driver of its card (such as mlx5_ib), make a soft-RoCE device with \
                    `cargo xtask net-setup --rxe IFACE`, or take the virtual machine (`cargo xtask vm`)"
                .to_owned();
        }
        format!("there are: {}", devices.join(", "))
    }

    fn interface_of(&self, device: &str, port: u8, gids: &GidTable) -> Option<Interface> {
        let of_gids = gids.0.iter().map(|entry| entry.interface.clone()).find(|name| !name.is_empty());
        let parent = || read(&self.device(device).join("parent"));
        let of_card = || {
            let dir = self.device(device).join("device/net");
            let numbered = |name: &String| {
                read(&dir.join(name).join("dev_port")).and_then(|n| n.parse::<u8>().ok()) == Some(port - 1)
            };
            names_in(&dir).into_iter().find(numbered)
        };
        let name = of_gids.or_else(parent).or_else(of_card)?;
        let mtu = read(&self.class.join("net").join(&name).join("mtu"))?.parse().ok()?;
        Some(Interface { name, mtu })
    }
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    /// "mlx5_0 port 1".
    pub(crate) fn place(&self) -> String {
        format!("{} port {}", self.device, self.number)
    }
}

impl GidTable {
    /// The entries that carry RoCEv2 over IPv4, with their addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (Ipv4Addr, &GidEntry)> {
        let v2 = self.0.iter().filter(|entry| entry.kind == "RoCE v2");
        v2.filter_map(|entry| Some((entry.gid.to_ipv4_mapped()?, entry)))
    }

    /// The entry that packets of this address leave with.
    pub(crate) fn of(&self, ip: Ipv4Addr) -> Option<&GidEntry> {
        self.addresses().find(|(own, _)| *own == ip).map(|(_, entry)| entry)
    }
}

impl fmt::Display for GidTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("  (empty)");
        }
        for (i, GidEntry { index, gid, kind, interface }) in self.0.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}  {index:>4}  {kind:10} {gid} ({interface})")?;
        }
        Ok(())
    }
}

/// The largest path MTU that fits an interface's MTU, bytes.
pub(crate) fn path_mtu(interface_mtu: u32) -> u32 {
    [4096, 2048, 1024, 512].into_iter().find(|mtu| mtu + HEADERS <= interface_mtu).unwrap_or(256)
}

fn read_gids(port: &Path) -> GidTable {
    let entry = |index: u32| {
        let gid: Ipv6Addr = read(&port.join("gids").join(index.to_string()))?.parse().ok()?;
        let attribute =
            |name: &str| read(&port.join("gid_attrs").join(name).join(index.to_string())).unwrap_or_default();
        let entry = GidEntry { index, gid, kind: attribute("types"), interface: attribute("ndevs") };
        (!gid.is_unspecified()).then_some(entry)
    };
    let mut indices: Vec<u32> =
        names_in(&port.join("gids")).iter().filter_map(|name| name.parse().ok()).collect();
    indices.sort_unstable();
    GidTable(indices.into_iter().filter_map(entry).collect())
}

/// A file's only line. Empty places of a GID table have files that cannot be read.
fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
pub(crate) mod fake {
    //! Trees like /sys/class.

    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A folder that goes when dropped.
    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            Self(std::env::temp_dir().join(format!("xtask-sysfs-{}-{n}", std::process::id())))
        }

        pub(crate) fn sysfs(&self) -> Sysfs {
            Sysfs::at(&self.0)
        }

        pub(crate) fn file(&self, path: &str, text: &str) -> &Self {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
            self
        }

        /// An active Ethernet port whose interface has that MTU.
        pub(crate) fn port(&self, device: &str, interface: &str, mtu: u32, addresses: &[[u8; 4]]) -> &Self {
            let dir = format!("infiniband/{device}/ports/1");
            self.file(&format!("{dir}/state"), "4: ACTIVE").file(&format!("{dir}/link_layer"), "Ethernet");
            self.file(&format!("net/{interface}/mtu"), &mtu.to_string());
            self.gid(device, 0, "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2", interface);
            for (i, [a, b, c, d]) in addresses.iter().enumerate() {
                let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
                let index = 2 * u32::try_from(i).unwrap() + 2;
                self.gid(device, index, &gid, "IB/RoCE v1", interface);
                self.gid(device, index + 1, &gid, "RoCE v2", interface);
            }
            self.file(&format!("{dir}/gids/1"), "0000:0000:0000:0000:0000:0000:0000:0000")
        }

        fn gid(&self, device: &str, index: u32, gid: &str, kind: &str, interface: &str) {
            let dir = format!("infiniband/{device}/ports/1");
            self.file(&format!("{dir}/gids/{index}"), gid);
            self.file(&format!("{dir}/gid_attrs/types/{index}"), kind);
            self.file(&format!("{dir}/gid_attrs/ndevs/{index}"), interface);
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::Tree;
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);

    #[test]
    fn a_port_with_its_table() {
        let tree = Tree::new();
        tree.port("mlx5_0", "eth2", 4200, &[[192, 168, 0, 1], [192, 168, 0, 2]]);
        let port = tree.sysfs().port("mlx5_0", 1).unwrap();
        assert!(port.is_active() && port.is_ethernet());
        assert_eq!(port.interface, Some(Interface { name: "eth2".into(), mtu: 4200 }));
        let addresses: Vec<(Ipv4Addr, u32)> = port.gids.addresses().map(|(ip, e)| (ip, e.index)).collect();
        assert_eq!(addresses, [(A, 3), (Ipv4Addr::new(192, 168, 0, 2), 5)], "RoCE v2 alone, behind a hole");
        assert_eq!(port.gids.of(A).map(|entry| entry.index), Some(3));
        assert_eq!(port.gids.of(Ipv4Addr::LOCALHOST), None);
        assert_eq!(port.gids.to_string().lines().count(), 5, "the empty entry is left out");
    }

    #[test]
    fn indices_are_numbers_and_not_words() {
        let tree = Tree::new();
        let addresses: Vec<[u8; 4]> = (1..=8).map(|d| [10, 0, 0, d]).collect();
        tree.port("mlx5_0", "eth2", 1500, &addresses);
        let port = tree.sysfs().port("mlx5_0", 1).unwrap();
        let indices: Vec<u32> = port.gids.addresses().map(|(_, entry)| entry.index).collect();
        assert_eq!(indices, [3, 5, 7, 9, 11, 13, 15, 17]);
    }

    #[test]
    fn what_is_not_there_is_answered_with_what_is() {
        let tree = Tree::new();
        let error = |device: &str, port| tree.sysfs().port(device, port).unwrap_err().to_string();
        assert!(error("mlx5_9", 1).contains("cargo xtask net-setup"), "{}", error("mlx5_9", 1));
        tree.port("mlx5_0", "eth2", 1500, &[]).port("rxe0", "lo", 65536, &[]);
        assert!(error("mlx5_9", 1).contains("mlx5_0, rxe0"), "{}", error("mlx5_9", 1));
        assert!(error("mlx5_0", 2).contains("there are: 1"), "{}", error("mlx5_0", 2));
    }

    #[test]
    fn the_interface_is_found_without_gids() {
        let tree = Tree::new();
        let bare = |device: &str| {
            tree.file(&format!("infiniband/{device}/ports/1/state"), "1: DOWN")
                .file(&format!("infiniband/{device}/ports/1/link_layer"), "Ethernet");
        };
        tree.file("net/eth0/mtu", "1500").file("net/eth1/mtu", "9000");
        bare("mlx5_0");
        tree.file("infiniband/mlx5_0/device/net/eth0/dev_port", "1")
            .file("infiniband/mlx5_0/device/net/eth1/dev_port", "0");
        bare("rxe0");
        tree.file("infiniband/rxe0/parent", "eth0");
        let sysfs = tree.sysfs();
        let name = |device: &str| sysfs.port(device, 1).unwrap().interface.unwrap().name;
        assert_eq!((name("mlx5_0"), name("rxe0")), ("eth1".to_owned(), "eth0".to_owned()));
        assert!(sysfs.is_rxe("rxe0") && !sysfs.is_rxe("mlx5_0"));
        assert!(!sysfs.port("mlx5_0", 1).unwrap().is_active());
    }

    #[test]
    fn path_mtus() {
        let cases = [(65536, 4096), (9000, 4096), (4200, 4096), (4096, 2048), (1500, 1024), (576, 256)];
        for (interface, path) in cases {
            assert_eq!(path_mtu(interface), path, "{interface}");
        }
    }
}
