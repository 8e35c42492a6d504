//! The built library from outside: what it exports, what it needs, and that both languages compile its headers.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use common::{Installed, SONAME, library, stdout};

const NAMES: [&str; 28] = [
    "cpu_roce_add_to_poller",
    "cpu_roce_blocking_monitor",
    "cpu_roce_close",
    "cpu_roce_connect",
    "cpu_roce_create_poller",
    "cpu_roce_create_transceiver",
    "cpu_roce_destroy_poller",
    "cpu_roce_destroy_transceiver",
    "cpu_roce_get_buffer_addr",
    "cpu_roce_get_frame_metadata",
    "cpu_roce_get_num_pages",
    "cpu_roce_get_page_size",
    "cpu_roce_get_qp_number",
    "cpu_roce_get_rkey",
    "cpu_roce_get_rx_ring_data_addr",
    "cpu_roce_get_rx_ring_flag_addr",
    "cpu_roce_get_state",
    "cpu_roce_get_stats",
    "cpu_roce_get_tx_ring_data_addr",
    "cpu_roce_get_tx_ring_flag_addr",
    "cpu_roce_last_error",
    "cpu_roce_rx_poll",
    "cpu_roce_set_local_ip",
    "cpu_roce_set_option",
    "cpu_roce_set_unified_dispatch",
    "cpu_roce_setup",
    "cpu_roce_start",
    "cpu_roce_tx_publish",
];

#[test]
fn nothing_else_is_exported() {
    let output = Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library()).output();
    let output = output.expect("nm, of binutils");
    let text = stdout(&output);
    let names: BTreeSet<_> = text.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(names, BTreeSet::from(NAMES));
}

#[test]
fn it_carries_the_known_name_and_needs_no_verbs() {
    let output = Command::new("readelf").arg("--dynamic").arg(library()).output();
    let text = stdout(&output.expect("readelf, of binutils"));
    assert!(text.contains(&format!("Library soname: [{SONAME}]")), "{text}");
    let needed: Vec<_> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty() && !needed.iter().any(|line| line.contains("ibverbs")), "{text}");
}

#[test]
fn both_languages_take_the_headers_and_link() {
    let installed = Installed::new();
    for language in ["c", "cc"] {
        let source = installed.dir().join(format!("headers.{language}"));
        let addresses: Vec<_> = NAMES.iter().map(|name| format!("(function){name}")).collect();
        let program = format!(
            "#include <cudaq/realtime/cpu_transport/roce_wrapper_ext.h>\n\
             #include <cudaq/realtime/cpu_transport/roce_wrapper.h>\n\
             typedef void (*function)(void);\n\
             int main(void) {{\n\
               function all[] = {{{}}};\n\
               for (unsigned i = 0; i < sizeof all / sizeof *all; i++)\n\
                 if (!all[i]) return 1;\n\
               return sizeof(cpu_roce_tx_mode_t) == 4 && sizeof(cpu_roce_stats_t) == 80 ? 0 : 2;\n\
             }}\n",
            addresses.join(", ")
        );
        // Function pointers of one type are cast on purpose.
        fs::write(&source, program).expect("written");
        let program = installed.compile_with(&source, &["-Wno-cast-function-type"]);
        common::run(&mut installed.command(program));
    }
}
