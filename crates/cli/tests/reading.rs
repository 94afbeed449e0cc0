//! The verbs that read a trace, on a small one whose content is known.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{Sample, command, run, trackway};
use trace::DataMode;

#[test]
fn instructions_are_disassembled() {
    let expected = "\
0, 0x0000000000401000, mov ecx, 0x2
0, 0x0000000000401005, loop 0x401005
0, 0x0000000000401005, loop 0x401005
0, 0x0000000000401007, call 0x401020
0, 0x0000000000401020, ret
0, 0x000000000040100c, mov eax, 0x3c
0, 0x0000000000401011, syscall
";
    let sample = Sample::new();
    assert_eq!(trackway(&["dump", "-d", "--thread", "0", &sample.name()]).assert_success().text(), expected);
    let both = format!("{expected}{}", expected.replace("\n0", "\n1").replacen('0', "1", 1));
    assert_eq!(trackway(&["dump", "-d", &sample.name()]).assert_success().text(), both);
    let plain: String =
        both.lines().map(|line| line.split(", ").take(2).collect::<Vec<_>>().join(", ") + "\n").collect();
    assert_eq!(
        trackway(&["dump", "--kind", "instructions", "--format", "ascii", &sample.name()]).assert_success().text(),
        plain
    );
}

#[test]
fn control_is_printed_as_by_mcf_trace() {
    let sample = Sample::new();
    let expected = "\
1, 0x0000000000401005, 0x0000000000401005, C, D, T loop 0x401005
1, 0x0000000000401005, 0x0000000000401005, C, D, NT loop 0x401005
1, 0x0000000000401007, 0x0000000000401020, U, D, T call 0x401020
1, 0x0000000000401020, 0x000000000040100c, U, I, T ret
";
    assert_eq!(
        trackway(&["dump", "--kind", "control", "-d", "-t", "1", &sample.name()]).assert_success().text(),
        expected
    );
}

#[test]
fn control_takes_eighteen_bytes() {
    let sample = Sample::new();
    let binary = trackway(&["dump", "--kind", "control", "--format", "binary", &sample.name()]).assert_success().stdout;
    assert_eq!(binary.len(), 2 * 4 * 18);
    let last = b"\x01\x20\x10\x40\0\0\0\0\0\x0c\x10\x40\0\0\0\0\0\x00";
    assert_eq!(binary[7 * 18..], *last);
    let types: Vec<u8> = binary.chunks(18).map(|descriptor| descriptor[17]).collect();
    assert_eq!(types, [2, 3, 1, 0, 2, 3, 1, 0]);
}

#[test]
fn memory_is_printed_as_by_mls_trace() {
    let sample = Sample::with_data(DataMode::Values);
    let dump = ["dump", "--kind", "memory"];
    let expected = "\
0, S, 0x0000000000401007, 0x000000007ffefff8, 8, 0x000000000040100c call 0x401020
0, L, 0x0000000000401020, 0x000000007ffefff8, 8, 0x000000000040100c ret
1, S, 0x0000000000401007, 0x000000007fff0ff8, 8, 0x000000000040100c call 0x401020
1, L, 0x0000000000401020, 0x000000007fff0ff8, 8, 0x000000000040100c ret
";
    assert_eq!(trackway(&[&dump[..], &["-d", &sample.name()]].concat()).assert_success().text(), expected);
    let lines: Vec<&str> = expected.lines().collect();
    // The call is the fourth of seven instructions of each thread, the return the fifth.
    for (window, shown) in [
        (&["--thread", "1"][..], &lines[2..]),
        (&["--thread", "1", "--skip", "4"], &lines[3..]),
        (&["--thread", "1", "--skip", "3", "--length", "1"], &lines[2..3]),
        (&["--skip", "4", "--length", "7"], &lines[1..3]),
        (&["--length", "3"], &[]),
    ] {
        let text = trackway(&[&dump[..], &["-d"], window, &[&sample.name()]].concat()).assert_success().text();
        assert_eq!(text.lines().collect::<Vec<_>>(), shown, "{window:?}");
    }
    let binary = trackway(&[&dump[..], &["--format", "binary", &sample.name()]].concat()).assert_success().stdout;
    assert_eq!(binary.len(), 4 * 27);
    let second = b"\x00\x00\x20\x10\x40\0\0\0\0\0\xf8\xff\xfe\x7f\0\0\0\0\x08\x0c\x10\x40\0\0\0\0\0";
    assert_eq!(binary[27..54], *second);
    let json = trackway(&[&dump[..], &["--json", "-t", "1", &sample.name()]].concat()).assert_success().text();
    let first: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!((&first["kind"], &first["size"], &first["thread"]), (&"store".into(), &8.into(), &1.into()));
    assert_eq!((&first["operand"], &first["value"]), (&"0x000000007fff0ff8".into(), &"0x000000000040100c".into()));
}

#[test]
fn addresses_are_printed_without_values() {
    let sample = Sample::with_data(DataMode::Addresses);
    let text = trackway(&["dump", "-k", "memory", "-t", "0", &sample.name()]).assert_success().text();
    let expected = "0, S, 0x0000000000401007, 0x000000007ffefff8, 8\n0, L, 0x0000000000401020, 0x000000007ffefff8, 8\n";
    assert_eq!(text, expected);
    let binary = trackway(&["dump", "-k", "memory", "-f", "binary", "-t", "0", &sample.name()]).assert_success().stdout;
    assert_eq!(binary.len(), 2 * 19);
    let info = trackway(&["info", "--json", &sample.name()]).assert_success().json();
    assert_eq!((&info["data"], &info["loads"], &info["stores"]), (&"addresses".into(), &2.into(), &2.into()));
    assert_eq!((&info["data_bytes"], &info["threads"][1]["loads"]), (&16.into(), &1.into()));
    let part = trackway(&["info", "--json", "--skip", "4", "-t", "1", &sample.name()]).assert_success().json();
    assert_eq!((&part["loads"], &part["stores"]), (&1.into(), &0.into()));
    let stat = trackway(&["stat", "--json", &sample.name()]).assert_success().json();
    assert_eq!((&stat["loads"], &stat["stores"]), (&2.into(), &2.into()));
    assert_eq!(stat["operands"], serde_json::json!([{ "size": 8, "loads": 2, "stores": 2 }]));
    let text = trackway(&["info", &sample.name()]).assert_success().text();
    assert!(text.contains("addresses: 16 B in"), "{text}");
    assert!(trackway(&["stat", &sample.name()]).assert_success().text().contains("bytes"));
    trackway(&["verify", &sample.name()]).assert_success();
}

#[test]
fn a_trace_without_data_says_so() {
    let sample = Sample::new();
    trackway(&["dump", "-k", "memory", &sample.name()]).assert_failure(1, &["not recorded", "--data addresses"]);
    let info = trackway(&["info", "--json", &sample.name()]).assert_success().json();
    assert_eq!((&info["data"], &info["loads"]), (&"none".into(), &0.into()));
    let stat = trackway(&["stat", "--json", &sample.name()]).assert_success().json();
    assert_eq!(stat.get("operands"), None);
}

#[test]
fn high_threads_need_the_wide_format() {
    let sample = Sample::with_threads(&[0, 255, 256]);
    let binary = ["dump", "-k", "control", "-f", "binary"];
    trackway(&[&binary[..], &[&sample.name()]].concat()).assert_failure(1, &["thread 256", "--wide"]);
    let wide = trackway(&[&binary[..], &["--wide", &sample.name()]].concat()).assert_success().stdout;
    assert_eq!(wide.len(), 3 * 4 * 21);
    assert_eq!(wide[2 * 4 * 21..][..4], 256u32.to_le_bytes());
    let one = trackway(&[&binary[..], &["--thread", "255", &sample.name()]].concat()).assert_success().stdout;
    assert_eq!(one[0], 255);
}

#[test]
fn skip_and_length_cut_anywhere() {
    let sample = Sample::new();
    let all = trackway(&["dump", &sample.name()]).assert_success().text();
    let all: Vec<&str> = all.lines().collect();
    let own = trackway(&["dump", "-t", "1", &sample.name()]).assert_success().text();
    let own: Vec<&str> = own.lines().collect();
    for skip in 0..=15 {
        for length in 0..=15 {
            let (skip_text, length_text) = (skip.to_string(), length.to_string());
            let window = ["dump", "--skip", &skip_text, "--length", &length_text, &sample.name()];
            let merged = trackway(&window).assert_success().text();
            let expected: Vec<&str> = all.iter().copied().skip(skip).take(length).collect();
            assert_eq!(merged.lines().collect::<Vec<_>>(), expected, "skip {skip} length {length}");
            if skip <= 8 && length <= 8 {
                let thread = trackway(&[&window[..], &["-t", "1"]].concat()).assert_success().text();
                let expected: Vec<&str> = own.iter().copied().skip(skip).take(length).collect();
                assert_eq!(thread.lines().collect::<Vec<_>>(), expected, "thread 1, skip {skip} length {length}");
            }
        }
    }
}

#[test]
fn dump_writes_json_lines() {
    let sample = Sample::new();
    let text = trackway(&["dump", "-k", "control", "-d", "--json", "-t", "0", &sample.name()]).assert_success().text();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[1]["taken"], false);
    assert_eq!(lines[2]["assembly"], "call 0x401020");
    assert_eq!(lines[3]["target"], "0x000000000040100c");
}

#[test]
fn info_and_stat_count_alike() {
    let sample = Sample::new();
    for verb in ["info", "stat"] {
        let json = trackway(&[verb, "--json", &sample.name()]).assert_success().json();
        assert_eq!(json["instructions"], 14, "{verb}");
        assert_eq!(json["branches"]["conditional_direct_taken"], 2);
        assert_eq!(json["branches"]["conditional_direct_not_taken"], 2);
        assert_eq!(json["branches"]["unconditional_direct"], 2);
        assert_eq!(json["branches"]["unconditional_indirect"], 2);
        assert_eq!((&json["loads"], &json["stores"], &json["data"]), (&0.into(), &0.into(), &"none".into()));
        assert_eq!(json["exceptions"], 0);
        assert_eq!(json["exit"]["code"], 3);
        assert_eq!(json["command"][1], "x");
        assert_eq!(json["threads"][1]["id"], 1);
        assert_eq!(json["threads"][1]["os_tid"], 1001);
        assert_eq!(json["threads"][1]["parent"], 0);
        assert_eq!(json["threads"][1]["instructions"], 7);
        let bytes = std::fs::metadata(sample.path()).unwrap().len();
        assert_eq!(json["file_bytes"], bytes);
        assert_eq!(json["bits_per_instruction"], bytes as f64 * 8.0 / 14.0);
    }
}

#[test]
fn a_part_is_counted_by_itself() {
    let sample = Sample::new();
    let part = ["--json", "--thread", "1", "--skip", "2", "--length", "3", &sample.name()];
    for verb in ["info", "stat"] {
        let json = trackway(&[&[verb], &part[..]].concat()).assert_success().json();
        assert_eq!(json["instructions"], 3, "{verb}");
        assert_eq!(json["branches"]["total"], 3);
        assert_eq!(json["branches"]["conditional_direct_taken"], 0);
        assert_eq!(json["threads"].as_array().unwrap().len(), 1);
        assert_eq!(json["selection"]["skip"], 2);
    }
    let json = trackway(&[&["verify"], &part[..]].concat()).assert_success().json();
    assert_eq!((&json["instructions"], &json["sound"]), (&3.into(), &true.into()));
}

#[test]
fn stat_lists_blocks_modules_and_system_calls() {
    let sample = Sample::new();
    let json = trackway(&["stat", "--json", "--top", "2", &sample.name()]).assert_success().json();
    let blocks = json["top_blocks"].as_array().unwrap();
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0]["address"], "0x401000");
    assert_eq!(blocks[0]["offset"], "0x1000");
    assert_eq!((&blocks[0]["executions"], &blocks[0]["instructions"]), (&2.into(), &4.into()));
    assert_eq!(json["top_modules"][0]["module"], "/sample");
    assert_eq!(json["top_modules"][0]["percent"], 100.0);
    assert_eq!(json["system_calls_by_name"][0]["name"], "exit");
    assert_eq!(json["system_calls_by_name"][0]["count"], 2);
    let text = trackway(&["stat", &sample.name()]).assert_success().text();
    for part in ["sample x", "status 3", "/sample", "exit", "0x401000"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

#[test]
fn json_is_the_same_every_time() {
    let sample = Sample::new();
    for verb in ["info", "stat", "verify", "dump"] {
        let once = trackway(&[verb, "--json", &sample.name()]).assert_success();
        let twice = trackway(&[verb, "--json", &sample.name()]).assert_success();
        assert_eq!(once.stdout, twice.stdout);
    }
    let plain = trackway(&["info", "--json", &sample.name()]).assert_success().json();
    assert!(plain.get("times").is_none());
    let timed = trackway(&["info", "--json", "--times", &sample.name()]).assert_success().json();
    assert!(timed["times"]["start_unix_nanoseconds"].is_u64());
}

#[test]
fn a_sound_trace_is_called_sound() {
    let sample = Sample::new();
    let text = trackway(&["verify", &sample.name()]).assert_success().text();
    let verdict = "sound; 14 instructions in 10 steps could be read; some indirect targets could not be checked\n";
    assert!(text.ends_with(verdict), "{text}");
}

#[test]
fn output_goes_to_a_file() {
    let sample = Sample::new();
    let out = sample.directory().join("out");
    trackway(&["dump", "-o", &out.to_string_lossy(), &sample.name()]).assert_success();
    assert_eq!(std::fs::read(out).unwrap(), trackway(&["dump", &sample.name()]).stdout);
    trackway(&["dump", "-o", "/nowhere/out", &sample.name()]).assert_failure(1, &["cannot write /nowhere/out"]);
    trackway(&["dump", "-o", "/dev/full", &sample.name()]).assert_failure(1, &["/dev/full", "No space left"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let sample = Sample::with_threads(&(0..1000).collect::<Vec<_>>());
    let mut child =
        command().args(["dump", "-d", &sample.name()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut printed = String::new();
    child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}

#[test]
fn unreadable_files_are_refused_in_one_sentence() {
    let sample = Sample::new();
    let other = sample.directory().join("other");
    std::fs::write(&other, "this is no trace").unwrap();
    let other = other.to_string_lossy();
    for verb in ["info", "stat", "verify", "dump"] {
        trackway(&[verb, "/nowhere/t.trk"]).assert_failure(1, &["/nowhere/t.trk"]);
        trackway(&[verb, &other]).assert_failure(1, &["is not a Trackway trace"]);
        trackway(&[verb, "/dev/null"]).assert_failure(1, &["/dev/null"]);
        trackway(&[verb, &sample.directory().to_string_lossy()])
            .assert_failure(1, &[&*sample.directory().to_string_lossy()]);
        trackway(&[verb, "--thread", "7", &sample.name()]).assert_failure(1, &["no thread 7", "trackway info"]);
    }
}

#[test]
fn a_damaged_trace_yields_what_is_intact() {
    let sample = Sample::new();
    let bytes = std::fs::read(sample.path()).unwrap();
    for length in [bytes.len() - 1, bytes.len() / 2, 40, 3, 0] {
        std::fs::write(sample.path(), &bytes[..length]).unwrap();
        let ran = trackway(&["verify", &sample.name()]);
        assert_eq!(ran.status, 1, "cut to {length} bytes: {ran:?}");
        for verb in ["info", "stat", "dump"] {
            let ran = trackway(&[verb, &sample.name()]);
            assert!(ran.status <= 1 && !ran.stderr.contains("panic"), "{verb} of {length} bytes: {ran:?}");
        }
    }
    for place in (0..bytes.len()).step_by(7) {
        let mut changed = bytes.clone();
        changed[place] ^= 0x20;
        std::fs::write(sample.path(), &changed).unwrap();
        let ran = trackway(&["verify", &sample.name()]);
        assert_eq!(ran.status, 1, "byte {place} changed: {ran:?}");
    }
}

#[test]
fn help_is_worth_reading() {
    let text = trackway(&["--help"]).assert_success().text();
    for verb in ["record", "info", "stat", "verify", "dump", "demo"] {
        assert!(text.contains(verb));
        let own = trackway(&[verb, "--help"]).assert_success().text();
        assert!(own.lines().count() > 8, "{own}");
        assert!(own.lines().all(|line| line.chars().count() <= 110), "{own}");
    }
    assert!(trackway(&["--version"]).assert_success().text().starts_with("trackway 0."));
}

#[test]
fn progress_is_for_terminals_only() {
    let sample = Sample::new();
    let ran = run(command().args(["stat", &sample.name()]).env("TERM", "xterm"));
    assert_eq!(ran.stderr, "");
}
