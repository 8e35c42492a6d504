//! The headers say what the library has: names, arguments and types of every function, the members of the counters and
//! the options; and compilers of C11 and C++17 take each of them without a warning. `cargo xtask header --check`.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::crate_dir;

/// Result and arguments, each as C writes them; arguments with their names.
type Functions = BTreeMap<String, (String, Vec<String>)>;

fn read(path: &str) -> String {
    fs::read_to_string(crate_dir().join(path)).expect("it is there")
}

/// The words and signs of a type, one space between them.
fn squeeze(text: &str) -> String {
    let spaced = text.replace('*', " * ").replace('(', " ( ").replace(')', " ) ").replace(',', " , ");
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits at commas outside of parentheses and angle brackets.
fn arguments(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = text.split(move |c: char| {
        depth += i32::from("(<".contains(c)) - i32::from(")>".contains(c));
        c == ',' && depth == 0
    });
    split.map(str::trim).filter(|argument| !argument.is_empty()).collect()
}

/// From after an opening parenthesis to the one that closes it.
fn inside(text: &str) -> &str {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    &text[..end.expect("it is closed")]
}

/// The code of a C file: no comments, no preprocessor.
fn c_code(text: &str) -> String {
    let mut parts = text.split("/*");
    let mut code = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        code += part.split_once("*/").expect("comments end").1;
    }
    code.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

fn declared(path: &str, functions: &mut Functions) {
    for statement in c_code(&read(path)).split(';') {
        let Some((head, rest)) = statement.split_once('(') else { continue };
        let head = squeeze(head.rsplit(['{', '}']).next().unwrap_or_default());
        let Some((result, name)) = head.rsplit_once(' ') else { continue };
        if name.starts_with("cpu_roce_") {
            let arguments = arguments(inside(rest)).into_iter().map(squeeze).collect();
            let again = functions.insert(name.to_owned(), (result.to_owned(), arguments));
            assert!(again.is_none(), "{name} is declared twice");
        }
    }
}

/// What C calls a type of the Rust sources.
fn c_type(rust: &str) -> &str {
    match rust {
        "()" => "void",
        "Handle" => "cpu_roce_transceiver_t",
        "PollerHandle" => "cpu_roce_poller_t",
        "TxModeNumber" => "cpu_roce_tx_mode_t",
        "*const c_char" => "const char *",
        "*mut c_void" => "void *",
        "*mut u32" => "uint32_t *",
        "*mut u64" => "uint64_t *",
        "*mut Counts" => "cpu_roce_stats_t *",
        "*mut Metadata" => "cpu_roce_frame_metadata_t *",
        "c_int" => "int",
        "c_uint" => "unsigned",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        other => panic!("{other} is no type of this interface"),
    }
}

/// An argument as C writes it. Only the callback has its name within its type.
fn c_argument(rust: &str) -> String {
    let (name, of_type) = rust.split_once(':').expect("name and type");
    let (name, of_type) = (name.trim(), of_type.trim());
    if of_type == "Option<Dispatch>" {
        let parameters = "void *ctx, const void *rx_slot, void *tx_slot, size_t slot_size";
        return squeeze(&format!("size_t (*{name})({parameters})"));
    }
    squeeze(&format!("{} {name}", c_type(of_type)))
}

fn exported(path: &str, functions: &mut Functions) {
    let source = read(path);
    for part in source.split("    fn cpu_roce_").skip(1) {
        let (name, rest) = part.split_once('(').expect("arguments");
        let list = inside(rest);
        let behind = rest[list.len() + 1..].trim_start();
        let result = match behind.strip_prefix("->") {
            Some(result) => result.split(',').next().expect("a type").trim(),
            None => "()",
        };
        let arguments = arguments(list).into_iter().map(c_argument).collect();
        functions.insert(format!("cpu_roce_{name}"), (c_type(result).to_owned(), arguments));
    }
}

#[test]
fn every_function_is_declared_as_it_is() {
    let (mut header, mut library) = (Functions::new(), Functions::new());
    declared("include/cudaq/realtime/cpu_transport/roce_wrapper.h", &mut header);
    assert_eq!(header.len(), 20, "the known functions, and that of the older generation");
    declared("include/cudaq/realtime/cpu_transport/roce_wrapper_ext.h", &mut header);
    exported("src/api.rs", &mut library);
    exported("src/ext.rs", &mut library);
    assert_eq!(header, library);
}

#[test]
fn the_callback_is_declared_as_it_is() {
    let source = read("src/dispatch.rs");
    let rust = source.split("pub type Dispatch = unsafe extern \"C\" fn(").nth(1).expect("the type");
    let rust: Vec<_> = arguments(inside(rust)).into_iter().map(squeeze).collect();
    let expected = ["ctx: *mut c_void", "rx_slot: *const c_void", "tx_slot: *mut c_void", "slot_size: usize"];
    assert_eq!(rust, expected.map(squeeze));
}

/// Name and type of each member, as `types` writes them in C.
fn members(text: &str, begin: &str, member: fn(&str) -> Option<(&str, &str)>) -> Vec<(String, String)> {
    let body = text.split(begin).nth(1).expect("the struct");
    let body = &body[..body.find('}').expect("its end")];
    let owned = |(name, of_type): (&str, &str)| (name.to_owned(), of_type.to_owned());
    body.lines().filter_map(|line| member(line.trim()).map(owned)).collect()
}

#[test]
fn what_is_handed_out_has_the_members_of_the_header() {
    let source = read("src/ext.rs");
    let header = c_code(&read("include/cudaq/realtime/cpu_transport/roce_wrapper_ext.h"));
    let structs = [("Counts", "cpu_roce_stats_t", 10), ("Metadata", "cpu_roce_frame_metadata_t", 9)];
    for (rust, c, count) in structs {
        let rust = members(&source, &format!("pub struct {rust} {{"), |line| {
            let (name, of_type) = line.strip_prefix("pub ")?.strip_suffix(',')?.split_once(": ")?;
            Some((name, if of_type == "u64" { "uint64_t" } else { "uint32_t" }))
        });
        let c = members(&header, &format!("struct {c} {{"), |line| {
            line.strip_suffix(';')?.split_once(' ').map(|(of_type, name)| (name, of_type))
        });
        assert_eq!(rust, c);
        assert_eq!(rust.len(), count);
    }
}

#[test]
fn the_options_are_those_of_the_header() {
    let source = read("src/options.rs");
    let table =
        source.split("const OPTIONS").nth(1).and_then(|rest| rest.split("\n];").next()).expect("the table");
    let rust: Vec<_> =
        table.lines().filter_map(|line| line.strip_prefix("    (\"")?.split('"').next()).collect();
    assert_eq!(rust.len(), table.matches("|b, v|").count(), "each begins a line");
    let header = read("include/cudaq/realtime/cpu_transport/roce_wrapper_ext.h");
    let header: Vec<_> = header
        .lines()
        .skip_while(|line| !line.contains("the refusal lists"))
        .take_while(|line| !line.contains("int cpu_roce_set_option"))
        .filter_map(|line| line.strip_prefix(" *   ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(rust, header);
}

#[test]
fn each_header_stands_alone() {
    for header in ["roce_wrapper.h", "roce_wrapper_ext.h"] {
        for (compiler, standard, language) in [("cc", "-std=c11", "c"), ("c++", "-std=c++17", "c++")] {
            let path = crate_dir().join("include/cudaq/realtime/cpu_transport").join(header);
            let output = Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-x", language])
                .arg("-include")
                .arg(path)
                .arg("/dev/null")
                .output()
                .expect("a compiler");
            assert!(output.status.success(), "{header}: {}", common::text(&output.stderr));
        }
    }
}
