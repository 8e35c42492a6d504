//! Boards that were heard, for people and as JSON.

use roce_rendezvous::hsb::enumeration::Model;
use roce_rendezvous::hsb::{Board, Ignored};
use serde_json::{Map, Value, json};

/// A paragraph for each data plane.
pub fn for_people(boards: &[Board], ignored: Ignored) -> String {
    let mut text: Vec<String> = boards.iter().map(paragraph).collect();
    let counts: Vec<_> = ignored.fields().into_iter().filter(|(_, count)| *count > 0).collect();
    if !counts.is_empty() {
        let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        text.push(format!("ignored datagrams: {}", counts.join(", ")));
    }
    text.join("\n")
}

fn paragraph(board: &Board) -> String {
    let kind = board.kind.map_or("unknown kind", |kind| kind.name);
    let uuid = board.uuid().map_or_else(|| "none".to_owned(), |uuid| uuid.to_string());
    format!(
        "{} {kind}, serial {}, data plane {}\n  HSB IP {:#06x}, UUID {uuid}\n  MAC {}, heard on {} ({})",
        board.peer_ip,
        board.serial(),
        board.data_plane(),
        board.version(),
        board.mac(),
        board.interface,
        board.local_ip
    )
}

/// `{"boards": […], "ignored": {…}}`. Versions and ids are hex strings, as boards' documents have them.
pub fn json(boards: &[Board], ignored: Ignored) -> Value {
    let ignored: Map<_, _> =
        ignored.fields().into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect();
    json!({ "boards": boards.iter().map(board_json).collect::<Vec<_>>(), "ignored": ignored })
}

fn board_json(board: &Board) -> Value {
    let said = &board.announcement;
    let (enumeration_version, compat_id, board_id) = match said.model {
        Model::Legacy { board_id, .. } => (1, None, Some(board_id)),
        Model::Uuid { compat_id, .. } => (2, Some(format!("{compat_id:#06x}")), None),
    };
    json!({
        "ip": board.peer_ip,
        "announced_ip": said.ip,
        "mac": board.mac().to_string(),
        "serial": board.serial().to_string(),
        "uuid": board.uuid().map(|uuid| uuid.to_string()),
        "data_plane": board.data_plane(),
        "hsb_ip_version": format!("{:#06x}", board.version()),
        "enumeration_version": enumeration_version,
        "compat_id": compat_id,
        "board_id": board_id,
        "kind": board.kind.map(|kind| json!({
            "name": kind.name,
            "sensors": kind.sensors,
            "data_planes": kind.data_planes,
            "sifs_per_sensor": kind.sifs_per_sensor,
            "block_access": kind.block_access,
        })),
        "interface": board.interface,
        "local_ip": board.local_ip,
    })
}
