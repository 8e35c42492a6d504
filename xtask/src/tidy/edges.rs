//! Which crate may use which: the layers, checked against `cargo metadata`.

use anyhow::{Context, Result};
use serde_json::Value;

use super::Finding;

/// What a crate of ours may use.
struct Layer {
    name: &'static str,
    /// Crates of ours; `None` allows all.
    siblings: Option<&'static [&'static str]>,
    /// Crates of others that would break the layer's promise.
    never: &'static [&'static str],
}

const fn layer(
    name: &'static str,
    siblings: &'static [&'static str],
    never: &'static [&'static str],
) -> Layer {
    Layer { name, siblings: Some(siblings), never }
}

/// An async runtime belongs to the control plane.
const NO_RUNTIME: &[&str] = &["tokio", "rdma-sys"];
/// Only one crate speaks to libibverbs.
const NO_VERBS: &[&str] = &["rdma-sys"];

const LAYERS: &[Layer] = &[
    layer("roce-core", &[], NO_RUNTIME),
    layer("roce-ring", &["roce-core"], NO_RUNTIME),
    layer("roce-soft", &["roce-core"], NO_RUNTIME),
    layer("roce-verbs", &["roce-core"], &["tokio"]),
    layer("roce-transport", &["roce-core", "roce-ring", "roce-soft", "roce-verbs"], NO_RUNTIME),
    layer("roce-rendezvous", &["roce-core"], NO_VERBS),
    layer("roce-dispatch", &["roce-core", "roce-ring", "roce-transport"], NO_RUNTIME),
    layer(
        "hsb-emulator",
        &["roce-core", "roce-ring", "roce-soft", "roce-rendezvous", "roce-verbs"],
        NO_VERBS,
    ),
    layer("roce-ffi", &[], NO_RUNTIME),
    layer("roce-capi", &["roce-core", "roce-ffi", "roce-ring", "roce-transport"], NO_RUNTIME),
    layer(
        "roce-provider",
        &["roce-core", "roce-dispatch", "roce-ffi", "roce-rendezvous", "roce-ring", "roce-transport"],
        NO_VERBS,
    ),
    Layer { name: "roce-conformance", siblings: None, never: NO_VERBS },
    Layer { name: "roce-fuzz", siblings: None, never: NO_VERBS },
    Layer { name: "roce-tools", siblings: None, never: NO_VERBS },
    layer("xtask", &[], NO_RUNTIME),
];

/// The edges in `metadata` that no layer allows. Dev-dependencies are free: they ship nowhere.
pub(super) fn check(metadata: &Value) -> Result<Vec<Finding>> {
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let mut complain = |text: String| {
            findings.push(Finding { path: format!("crate {name}"), line: 0, text });
        };
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            complain(
                "stands in no layer; add it to xtask/src/tidy/edges.rs and to ARCHITECTURE.md".to_owned(),
            );
            continue;
        };
        let dependencies = package["dependencies"].as_array().context("a package without dependencies")?;
        for dependency in dependencies.iter().filter(|dependency| dependency["kind"] != "dev") {
            let used = dependency["name"].as_str().context("a dependency without a name")?;
            let sibling_refused =
                ours.contains(&used) && layer.siblings.is_some_and(|siblings| !siblings.contains(&used));
            if sibling_refused || layer.never.contains(&used) {
                complain(format!("uses {used}, which its layer must not"));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(packages: Value) -> Vec<String> {
        check(&json!({ "packages": packages })).unwrap().iter().map(ToString::to_string).collect()
    }

    fn package(name: &str, uses: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            uses.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({ "name": name, "dependencies": dependencies })
    }

    #[test]
    fn allowed_edges_pass() {
        let core = package("roce-core", &[("thiserror", None)]);
        let ring = package("roce-ring", &[("roce-core", None), ("proptest", Some("dev"))]);
        let tools = package("roce-tools", &[("roce-ring", None), ("tokio", None)]);
        assert_eq!(findings(json!([core, ring, tools])), [""; 0]);
    }

    #[test]
    fn edges_against_the_layers_are_found() {
        let core = package("roce-core", &[("roce-ring", None)]);
        let ring = package("roce-ring", &[("tokio", None)]);
        assert_eq!(
            findings(json!([core, ring])),
            [
                "crate roce-core: uses roce-ring, which its layer must not",
                "crate roce-ring: uses tokio, which its layer must not"
            ]
        );
        let build = package("xtask", &[("roce-core", Some("build"))]);
        assert_eq!(findings(json!([build, package("roce-core", &[])])).len(), 1);
    }

    #[test]
    fn dev_dependencies_are_free() {
        let ring = package("roce-ring", &[("roce-soft", Some("dev"))]);
        assert_eq!(findings(json!([ring, package("roce-soft", &[])])), [""; 0]);
    }

    #[test]
    fn a_new_crate_needs_a_layer() {
        let found = findings(json!([package("roce-new", &[])]));
        assert!(found[0].contains("crate roce-new: stands in no layer"), "{found:?}");
    }
}
